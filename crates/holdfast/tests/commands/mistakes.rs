//! What people get wrong, and what they are told.

use crate::site::Site;

#[test]
fn a_recipient_that_is_none_is_described_and_never_repeated() {
    let site = Site::before_init();
    let identity = std::fs::read_to_string(site.at("me")).unwrap();
    let secret = identity.lines().find(|line| line.starts_with("hf-identity-")).unwrap();
    let answer = site.holdfast(&["init", "--recipient", &format!("me={secret}")]);
    let answer =
        answer.refused(2, "write me=hf-recipient-…, as keygen printed it").refused(2, "is of «hf-identity-»");
    let digits = secret.trim_start_matches("hf-identity-");
    assert!(!answer.err.contains(digits), "{answer:?}");
    site.holdfast(&["init", "--recipient", secret]).refused(2, "write NAME=RECIPIENT");
    let mut mistyped = site.recipient("me");
    let last = mistyped.pop();
    mistyped.push(if last == Some('0') { '1' } else { '0' });
    site.holdfast(&["init", "--recipient", &format!("me={mistyped}")]).refused(2, "wrong check sum");
    assert!(!site.at("store").exists(), "nothing was made");

    // The other way round: the public half where the identity belongs.
    let site = site.with_source(&[]);
    site.write("public", &site.recipient("me"));
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(site.at("public"), mode).unwrap();
    site.holdfast(&["status", "--identity", "public"])
        .refused(2, "public is no identity as «keygen» writes it")
        .refused(2, "«hf-identity-» and hexadecimal digits")
        .refused(2, "is of «hf-recipient-»");
}

#[test]
fn a_relative_folder_is_refused() {
    let site = Site::new();
    let settings = site.kit().replace(&site.at("store").display().to_string(), "store");
    site.write("holdfast.toml", &settings);
    site.with_identity(&["status"]).refused(2, "is a relative path");
}

#[test]
fn a_command_without_sources_says_so() {
    let site = Site::new();
    site.write("holdfast.toml", &site.kit());
    site.holdfast(&["run"]).refused(2, "add a section [source.NAME]");
    site.holdfast(&["check"]).good();
}
