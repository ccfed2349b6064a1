//! What an identity is good for, beside restores: another host that has the recovery kit alone.

use crate::site::Site;

#[test]
fn the_kit_and_an_identity_are_enough_to_look() {
    let site = Site::new().with_data();
    // As the sidecar's host sees it, by the key file.
    let near = site.holdfast(&["status", "--json"]).good().json();
    assert_eq!(near[0]["base_backups"], 1);
    site.write("holdfast.toml", &site.kit());
    std::fs::remove_file(site.at("main.key")).unwrap();

    site.holdfast(&["status"]).refused(2, "no identity was given (--identity FILE shows all sources");
    site.holdfast(&["status", "main"]).refused(2, "by --identity FILE, or by the key_file of its section");
    site.holdfast(&["list", "main"]).refused(2, "by --identity FILE");
    site.holdfast(&["hold", "main"]).refused(2, "by --identity FILE");

    let far = site.with_identity(&["status", "--json"]).good().json();
    assert_eq!(far[0]["source"], "main");
    assert_eq!(far[0]["head"], near[0]["head"]);
    let time = |name: &str| far[0][name].as_str().unwrap().to_owned();
    assert!(time("restorable_from") <= time("restorable_to"), "{far}");
    assert!(site.with_identity(&["status"]).good().out.contains("main"));
    site.with_identity(&["status", "mian"]).refused(2, "no source «mian»");
    site.with_identity(&["hold", "main", "--keep", "100ms"]).good();
    assert!(site.with_identity(&["verify", "main"]).good().out.contains("whole"));

    // Nothing is stored of a source that was only added.
    site.with_identity(&["source", "add", "other", "--out", "other.key"]).good();
    let both = site.with_identity(&["status", "--json"]);
    assert_eq!(both.json().as_array().unwrap().len(), 1);
    both.refused(3, "other: nothing is in the repository yet");
    site.with_identity(&["list", "other"]).refused(3, "nothing of «other»");
}

#[test]
fn a_lost_key_file_is_written_again_from_the_ring() {
    let site = Site::new();
    let key = std::fs::read_to_string(site.at("main.key")).unwrap();
    site.with_identity(&["source", "add", "main", "--out", "second.key"])
        .refused(2, "holdfast source key main");
    assert!(!site.at("second.key").exists());
    site.with_identity(&["source", "key", "main"]).refused(2, "is not overwritten");
    std::fs::remove_file(site.at("main.key")).unwrap();
    site.holdfast(&["source", "key", "main"]).refused(2, "an identity is needed");
    site.with_identity(&["source", "key", "main"]).good();
    assert_eq!(std::fs::read_to_string(site.at("main.key")).unwrap(), key);
}

#[test]
fn a_passphrase_alone_is_an_identity_for_every_command() {
    let site = Site::before_init();
    site.write("pass", "a long sentence that nobody guesses\n");
    site.write("wrong", "another sentence\n");
    for secret in ["pass", "wrong"] {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(site.at(secret), mode).unwrap();
    }
    site.holdfast(&["keygen", "--out", "paper", "--passphrase-file", "pass"]).good();
    let paper = format!("paper={}", site.recipient("paper"));
    let site = site.with_source(&["--recipient", &paper, "--store-identity", "paper"]).with_data();

    let with = |args: &[&str], secret: &str| site.holdfast(&[args, &["--passphrase-file", secret]].concat());
    for command in [&["status"][..], &["verify", "main"], &["hold", "main", "--keep", "1ms"]] {
        with(command, "pass").good();
        with(command, "wrong").refused(2, "opens none of the 1 identities");
    }
    // Contents are read, not only digests: that takes an identity.
    assert!(with(&["verify", "main"], "pass").out.contains("3 pieces"));
    let lines = with(&["check", "--json"], "pass").json();
    let proof = lines.as_array().unwrap().iter().find(|line| line["what"] == "identity").unwrap();
    assert_eq!((&proof["about"], &proof["state"]), (&"main".into(), &"good".into()), "{proof}");
    let lines = with(&["check", "--json"], "wrong").json();
    assert!(lines.to_string().contains("opens none of the 1 identities"), "{lines}");
}
