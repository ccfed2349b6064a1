//! From an open socket to a server that takes commands: startup message, proof of who we are.

use holdfast_core::task;
use postgres_protocol::{
    authentication::{
        md5_hash,
        sasl::{ChannelBinding, SCRAM_SHA_256, SCRAM_SHA_256_PLUS, ScramSha256},
    },
    message::frontend,
};

use crate::{
    Config, Error, Host, Result, Secret,
    config::{Address, Binding},
    message::{Authentication, Message},
    socket::{Incoming, Outgoing},
};

/// What the way here offers.
pub(crate) struct Channel {
    pub tls: bool,
    /// What binds a sign-in to the server's certificate, when it can be computed.
    pub end_point: Option<Vec<u8>>,
}

pub(crate) async fn sign_in(
    incoming: &mut Incoming,
    outgoing: &mut Outgoing,
    config: &Config,
    host: &Host,
    channel: &Channel,
) -> Result<()> {
    start(outgoing, config).await?;
    let refuse = |what: String| Error::Auth { host: host.to_string(), what };
    let mut scram: Option<(ScramSha256, Proof)> = None;
    let (mut bound, mut proved) = (false, false);
    loop {
        let request = match incoming.message().await? {
            Message::Authentication(request) => request,
            other => return Err(other.unexpected("while signing in")),
        };
        if let Some((name, false)) = method(&request, config) {
            return Err(refuse(format!("it asks for {name}, which require_auth excludes")));
        }
        match request {
            Authentication::Ok => break,
            Authentication::Cleartext => {
                proved = true;
                let readable = !channel.tls && matches!(host.address, Address::Tcp { .. });
                if readable && !config.allow_cleartext {
                    return Err(refuse(
                        "it asks for the readable password over a connection without TLS; use sslmode=require, or \
                         cleartext_password=allow if the network is trusted"
                            .into(),
                    ));
                }
                let password = password(config, host).await?;
                frontend::password_message(password.reveal().as_bytes(), &mut outgoing.buffer)
                    .map_err(|_| refuse("the password contains a zero byte".into()))?;
                outgoing.flush().await?;
            }
            Authentication::Md5(salt) => {
                proved = true;
                let password = password(config, host).await?;
                let hash = md5_hash(config.user.as_bytes(), password.reveal().as_bytes(), salt);
                frontend::password_message(hash.as_bytes(), &mut outgoing.buffer)
                    .map_err(|_| Error::protocol("an MD5 answer cannot be written"))?;
                outgoing.flush().await?;
            }
            Authentication::Sasl(mechanisms) if scram.is_none() => {
                let (mechanism, binding) =
                    choose(&mechanisms, config.channel_binding, channel).map_err(&refuse)?;
                bound = mechanism == SCRAM_SHA_256_PLUS;
                let password = password(config, host).await?;
                let exchange = ScramSha256::new(password.reveal().as_bytes(), binding);
                frontend::sasl_initial_response(mechanism, exchange.message(), &mut outgoing.buffer)
                    .map_err(|_| Error::protocol("a SCRAM message cannot be written"))?;
                scram = Some((exchange, Proof::Asked));
                outgoing.flush().await?;
            }
            Authentication::SaslContinue(data) => {
                let Some((exchange, proof @ Proof::Asked)) = &mut scram else {
                    return Err(Error::protocol("SCRAM goes on although it did not begin"));
                };
                exchange.update(&data).map_err(|cause| refuse(format!("SCRAM failed: {cause}")))?;
                *proof = Proof::Given;
                frontend::sasl_response(exchange.message(), &mut outgoing.buffer)
                    .map_err(|_| Error::protocol("a SCRAM message cannot be written"))?;
                outgoing.flush().await?;
            }
            Authentication::SaslFinal(data) => {
                let Some((exchange, proof @ Proof::Given)) = &mut scram else {
                    return Err(Error::protocol("SCRAM ends although it did not begin"));
                };
                exchange.finish(&data).map_err(|cause| {
                    refuse(format!("the server does not know our password, it may be an impostor: {cause}"))
                })?;
                *proof = Proof::Returned;
            }
            Authentication::Sasl(_) => return Err(Error::protocol("SCRAM begins twice")),
            Authentication::Unknown(kind) => return Err(refuse(unknown(kind))),
        }
    }
    if !config.methods.none && !proved && scram.is_none() {
        return Err(refuse("it lets us in without any proof, which require_auth excludes".into()));
    }
    if scram.is_some_and(|(_, proof)| proof != Proof::Returned) {
        return Err(refuse("it let us in without proving that it knows our password".into()));
    }
    if config.channel_binding == Binding::Require && !bound {
        return Err(refuse("channel_binding=require, but it let us in without any".into()));
    }
    incoming.inbox.signed_in();
    match incoming.message().await? {
        Message::ReadyForQuery => Ok(()),
        other => Err(other.unexpected("after signing in")),
    }
}

/// The name of a way of signing in, and whether it is acceptable.
fn method(request: &Authentication, config: &Config) -> Option<(&'static str, bool)> {
    match request {
        Authentication::Cleartext => Some(("the readable password", config.methods.cleartext)),
        Authentication::Md5(_) => Some(("an MD5 hash of the password", config.methods.md5)),
        Authentication::Sasl(_) => Some(("SCRAM", config.methods.scram)),
        _ => None,
    }
}

/// How far SCRAM went.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Proof {
    Asked,
    Given,
    /// The server proved that it knows the password too.
    Returned,
}

async fn start(outgoing: &mut Outgoing, config: &Config) -> Result<()> {
    let mut parameters =
        vec![("user", config.user.as_str()), ("replication", "true"), ("client_encoding", "UTF8")];
    if let Some(name) = &config.application_name {
        parameters.push(("application_name", name));
    }
    if let Some(options) = &config.options {
        parameters.push(("options", options));
    }
    frontend::startup_message(parameters, &mut outgoing.buffer)
        .map_err(|_| Error::Config("user, application_name or options contain a zero byte".into()))?;
    outgoing.flush().await
}

async fn password(config: &Config, host: &Host) -> Result<Secret> {
    let (wanted, at) = (config.clone(), host.clone());
    let found = task::blocking(move || wanted.password_for(&at, None))
        .await
        .map_err(|cause| Error::Config(cause.chain()))??;
    found.ok_or_else(|| Error::Auth {
        host: host.to_string(),
        what: match &config.passfile {
            Some((file, _)) => format!(
                "it asks for a password of «{}»; none is given, and {} has no line for host, port, database \
                 «replication» and user",
                config.user,
                file.display()
            ),
            None => format!("it asks for a password of «{}» and none is given", config.user),
        },
    })
}

/// The mechanism to use and what to tell about binding. Saying «I could bind, you did not offer it» lets the
/// server notice somebody in the middle who took the offer away.
fn choose(
    offered: &[String],
    wanted: Binding,
    channel: &Channel,
) -> Result<(&'static str, ChannelBinding), String> {
    let offers = |name: &str| offered.iter().any(|o| o == name);
    let binds = offers(SCRAM_SHA_256_PLUS);
    if wanted == Binding::Require {
        return match (&channel.end_point, binds) {
            (Some(hash), true) => {
                Ok((SCRAM_SHA_256_PLUS, ChannelBinding::tls_server_end_point(hash.clone())))
            }
            (_, true) => {
                Err("channel_binding=require, but there is no TLS or its certificate has no hash to bind to"
                    .into())
            }
            (_, false) => Err("channel_binding=require, but the server does not offer it".into()),
        };
    }
    match &channel.end_point {
        Some(hash) if binds && wanted == Binding::Prefer => {
            Ok((SCRAM_SHA_256_PLUS, ChannelBinding::tls_server_end_point(hash.clone())))
        }
        _ if !offers(SCRAM_SHA_256) => Err(format!(
            "none of the ways that it offers is possible here: {}",
            offered.join(", ").chars().take(200).collect::<String>()
        )),
        Some(_) if wanted == Binding::Prefer => Ok((SCRAM_SHA_256, ChannelBinding::unrequested())),
        _ => Ok((SCRAM_SHA_256, ChannelBinding::unsupported())),
    }
}

fn unknown(kind: u32) -> String {
    let name = match kind {
        2 => "Kerberos 5",
        7 | 8 => "GSSAPI",
        9 => "SSPI",
        _ => return format!("it asks for a way of signing in (number {kind}) that is not supported"),
    };
    format!("it asks for {name}, which is not supported: use scram-sha-256 or cert in pg_hba.conf")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mechanism_follows_offer_wish_and_channel() {
        let both = [SCRAM_SHA_256_PLUS.to_owned(), SCRAM_SHA_256.to_owned()];
        let plain = [SCRAM_SHA_256.to_owned()];
        let tls = Channel { tls: true, end_point: Some(vec![1; 32]) };
        let unbindable = Channel { tls: true, end_point: None };
        let picked = |offered: &[String], wanted, channel| choose(offered, wanted, channel).map(|c| c.0);

        assert_eq!(picked(&both, Binding::Prefer, &tls), Ok(SCRAM_SHA_256_PLUS));
        assert_eq!(picked(&both, Binding::Disable, &tls), Ok(SCRAM_SHA_256));
        assert_eq!(picked(&both, Binding::Prefer, &unbindable), Ok(SCRAM_SHA_256));
        assert_eq!(picked(&plain, Binding::Prefer, &tls), Ok(SCRAM_SHA_256));
        assert_eq!(picked(&both, Binding::Require, &tls), Ok(SCRAM_SHA_256_PLUS));
        for (offered, channel) in [(&both[..], &unbindable), (&plain[..], &tls)] {
            assert!(picked(offered, Binding::Require, channel).is_err());
        }
        assert!(
            picked(&["OAUTHBEARER".to_owned()], Binding::Prefer, &tls).unwrap_err().contains("OAUTHBEARER")
        );
    }
}
