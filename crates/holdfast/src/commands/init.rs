//! `init`: the repository's birth, and the recovery kit for paper.

use holdfast_core::{Clock, Error, Random, Result, sink::Created};
use holdfast_repo::{
    keys::{ProtectedIdentity, RootKey},
    names::Name,
    ring::{Member, RepoRecord, RingContent},
};

use crate::{cli::Init, config::Config, keys, output, store};

pub async fn run(args: &Init, config: &Config, json: bool) -> Result<()> {
    let (clock, random) = (Clock::system(), Random::system());
    let members = args.recipients.iter().map(|text| member(text)).collect::<Result<Vec<_>>>()?;
    let identities = args.stored.iter().map(|path| stored(path)).collect::<Result<Vec<_>>>()?;
    if config.repository.id.is_some() {
        return Err(Error::configure(
            "[repository] has an id already: the settings belong to a repository that exists. Use other settings to make a second one",
        ));
    }
    let store = store::create(&config.repository, &clock, &random).await?;
    let root = RootKey::generate(&random);
    let now = clock.wall();
    let record = RepoRecord { root: root.public()?, created: now };
    let ring = RingContent { members, identities, sources: Vec::new() }.seal(&root, 1, now, &random)?;
    // The ring first: a repository whose root key nobody holds must not come into being.
    let address = store.sink.address();
    let taken = || {
        Error::configure(format!(
            "there is a repository at {address} already, or one was begun; choose another url, it is never overwritten"
        ))
    };
    if store.sink.read(&Name::Repo.to_string(), holdfast_core::sink::Range::All).await?.is_some() {
        return Err(taken());
    }
    for (name, bytes) in [(Name::Ring(1), ring), (Name::Repo, record.write()?)] {
        if store.sink.create(&name.to_string(), bytes.into()).await? == Created::Exists {
            return Err(taken());
        }
    }
    let id = record.repo();
    if json {
        return output::json(&serde_json::json!({ "repository": id.to_string(), "address": address }));
    }
    output::line(format!("id = \"{id}\""));
    eprintln!("Put this line into [repository] of the settings. And print the following on paper, now:\n");
    eprintln!("  HOLDFAST RECOVERY KIT, {now}");
    eprintln!("  address     {address}");
    for text in &args.recipients {
        let (name, recipient) = text.split_once('=').unwrap_or((text, ""));
        eprintln!("  identity    of {name} (its recipient is {recipient})");
    }
    if !args.stored.is_empty() {
        eprintln!(
            "  passphrase  of the identity that is stored in the repository: --passphrase-file alone is enough"
        );
    }
    eprintln!(
        "  A file holdfast.toml with these three lines, an identity and one command bring everything back"
    );
    eprintln!("  (a store that is not AWS needs its [repository.s3], too):");
    eprintln!("      [repository]");
    eprintln!("      id = \"{id}\"");
    eprintln!("      url = \"{}\"", config.repository.url);
    eprintln!("      holdfast restore NAME --latest --identity FILE --target FOLDER\n");
    Ok(())
}

fn member(text: &str) -> Result<Member> {
    match text.split_once('=') {
        Some((name, recipient)) if !name.is_empty() => {
            // Not repeated in the sentence: what was given may be the identity itself.
            let recipient = recipient.trim().parse().map_err(|error: Error| {
                error.during(format!(
                    "--recipient of «{name}» is no recipient: write {name}=hf-recipient-…, as keygen printed it"
                ))
            })?;
            Ok(Member { name: name.to_owned(), recipient })
        }
        _ => Err(Error::configure(
            "--recipient lacks a name: write NAME=RECIPIENT, for example anna=hf-recipient-…, as keygen printed it",
        )),
    }
}

fn stored(path: &std::path::Path) -> Result<ProtectedIdentity> {
    let text = keys::read_secret(path, "the identity file")?;
    if !ProtectedIdentity::is(&text) {
        return Err(Error::configure(format!(
            "the identity in {} is not protected by a passphrase, so it must not lie in the repository; make one with «keygen --passphrase-file»",
            path.display()
        )));
    }
    text.parse()
}
