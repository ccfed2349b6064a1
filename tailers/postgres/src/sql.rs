//! A plain SQL connection beside the replication connection, to the same host: views of slots and of
//! replication, settings, clocks. The only place that knows `tokio-postgres`.

use std::time::Duration;

use holdfast_core::{Act, Clock, Error, Result, task};
use holdfast_pgwire::{Address, Binding, Config, Host, TlsMode};
use tokio_postgres::{Client, NoTls, SimpleQueryMessage, config as pg};
use tokio_postgres_rustls::MakeRustlsConnect;

/// A question may take this long before the connection counts as dead.
const PATIENCE: Duration = Duration::from_secs(15);

/// An open connection; ends when dropped.
pub struct Sql {
    client: Client,
    clock: Clock,
    driver: task::Task<()>,
}

/// Columns in text form, `None` for NULL.
pub type Row = Vec<Option<String>>;

impl Sql {
    pub async fn open(config: &Config, host: &Host, clock: &Clock) -> Result<Self> {
        // Not the user's name as libpq does: a role made for replication has no database of its own.
        let database = config.database.clone().unwrap_or_else(|| "postgres".to_owned());
        let mut wanted = pg::Config::new();
        wanted.user(&config.user).dbname(&database).port(host.port).application_name("holdfast");
        wanted.connect_timeout(config.connect_timeout.unwrap_or(PATIENCE));
        if let Some(password) = config.password_for(host, Some(&database))? {
            wanted.password(password.reveal());
        }
        let mut plain = config.tls.mode == TlsMode::Disable;
        match &host.address {
            Address::Unix(folder) => {
                wanted.host_path(folder);
                plain = true;
            }
            Address::Tcp { name, ip } => {
                wanted.host(name);
                if let Some(ip) = ip {
                    wanted.hostaddr(*ip);
                }
            }
        }
        wanted.channel_binding(match config.channel_binding {
            Binding::Disable => pg::ChannelBinding::Disable,
            Binding::Prefer => pg::ChannelBinding::Prefer,
            Binding::Require => pg::ChannelBinding::Require,
        });
        let failed = |cause| failure(cause, &format!("no SQL connection to {host}"));
        let late = || Error::retry(format!("no SQL connection to {host}: it does not answer"));
        // The library's own limit ends with the TCP connection; signing in may hang as well.
        let limit = config.connect_timeout.unwrap_or(PATIENCE);
        let driver = if plain {
            wanted.ssl_mode(pg::SslMode::Disable);
            let (client, connection) =
                clock.timeout(limit, wanted.connect(NoTls)).await.ok_or_else(late)?.map_err(failed)?;
            (client, task::spawn(async move { drop(connection.await) }))
        } else {
            wanted.ssl_mode(match config.tls.mode {
                TlsMode::Disable | TlsMode::Allow | TlsMode::Prefer => pg::SslMode::Prefer,
                _ => pg::SslMode::Require,
            });
            if config.tls.direct {
                wanted.ssl_negotiation(pg::SslNegotiation::Direct);
            }
            let tls = config.tls.clone();
            let tls = MakeRustlsConnect::new(task::blocking(move || tls.client_config()).await??);
            let (client, connection) =
                clock.timeout(limit, wanted.connect(tls)).await.ok_or_else(late)?.map_err(failed)?;
            (client, task::spawn(async move { drop(connection.await) }))
        };
        Ok(Self { client: driver.0, clock: clock.clone(), driver: driver.1 })
    }

    /// Returns when the server has closed the connection. Not to be asked again afterwards.
    pub async fn ended(&mut self) {
        drop((&mut self.driver).await);
    }

    pub async fn rows(&self, query: &str) -> Result<Vec<Row>> {
        let answer = self.clock.timeout(PATIENCE, self.client.simple_query(query)).await;
        let answer = answer.ok_or_else(|| Error::retry("the server does not answer a question in SQL"))?;
        let messages = answer.map_err(|cause| failure(cause, "a question in SQL failed"))?;
        Ok(messages
            .into_iter()
            .filter_map(|message| match message {
                SimpleQueryMessage::Row(row) => {
                    Some((0..row.len()).map(|column| row.get(column).map(str::to_owned)).collect())
                }
                _ => None,
            })
            .collect())
    }

    /// The first row, if any.
    pub async fn row(&self, query: &str) -> Result<Option<Row>> {
        Ok(self.rows(query).await?.into_iter().next())
    }
}

/// A column that must be there, parsed.
pub fn parsed<T: std::str::FromStr>(row: &Row, column: usize) -> Option<T> {
    row.get(column)?.as_deref()?.parse().ok()
}

/// Does the error say that the server shuts down (or starts up)?
pub fn is_going_down(error: &Error) -> bool {
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(cause) = next {
        if let Some(code) = cause.downcast_ref::<tokio_postgres::Error>().and_then(|cause| cause.code()) {
            return matches!(code.code(), "57P01" | "57P03");
        }
        next = cause.source();
    }
    false
}

fn failure(cause: tokio_postgres::Error, what: &str) -> Error {
    let code = cause.code().map(|code| code.code().to_owned()).unwrap_or_default();
    let passing = code.is_empty() || ["08", "53", "57"].iter().any(|class| code.starts_with(class));
    let act = if passing { Act::Retry } else { Act::Configure };
    Error::new(act, what).because(cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets us in on TCP and never says a word.
    #[tokio::test]
    async fn a_server_that_does_not_sign_us_in_is_given_up() {
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = silent.local_addr().unwrap().port();
        let dsn = format!("host=127.0.0.1 port={port} user=u sslmode=disable connect_timeout=2");
        let config = Config::parse(&dsn).unwrap();
        let clock = Clock::system();
        let open = Box::pin(Sql::open(&config, &config.hosts[0], &clock));
        let cause = clock.timeout(Duration::from_secs(10), open).await.expect("no deadline").err().unwrap();
        assert!(cause.is_passing() && cause.to_string().contains("does not answer"), "{cause}");
    }
}
