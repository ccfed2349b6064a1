//! `keygen`: the identity of a person who may restore.

use holdfast_core::{Random, Result};
use holdfast_repo::keys::{Cost, Identity, ProtectedIdentity};

use crate::{cli::Keygen, keys, output};

pub fn run(args: &Keygen, json: bool) -> Result<()> {
    let random = Random::system();
    let identity = Identity::generate(&random);
    match &args.passphrase_file {
        Some(file) => {
            let passphrase = keys::passphrase(file)?;
            let protected = ProtectedIdentity::protect(&identity, &passphrase, Cost::DEFAULT, &random)?;
            keys::write_secret(&args.out, &protected.file()?)?;
        }
        None => keys::write_secret(&args.out, &identity.file()?)?,
    }
    let recipient = identity.recipient()?.to_string();
    if json {
        return output::json(&serde_json::json!({ "recipient": recipient, "identity": args.out }));
    }
    eprintln!(
        "The identity is in {}. Keep a copy where a fire does not reach it: who loses it loses",
        args.out.display()
    );
    eprintln!("the backups, who finds it can read them. Its recipient, for «holdfast init»:");
    output::line(recipient);
    Ok(())
}
