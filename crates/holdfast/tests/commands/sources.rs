//! Several sources in one process, and several processes with one state folder: each source stands alone.

use std::os::unix::fs::PermissionsExt;

use crate::site::{Running, Site, free_port, get};

/// A section that differs from «main» in its name; `key` is its key file.
fn second(site: &Site, name: &str, key: &str) -> String {
    format!(
        "[source.{name}]\nkind = \"postgres\"\nkey_file = \"{}\"\ndsn = \"host=/nowhere user={name}\"\n",
        site.at(key).display()
    )
}

#[test]
fn a_source_that_cannot_be_got_ready_stops_no_other() {
    let site = Site::new();
    site.with_identity(&["source", "add", "open", "--out", "open.key"]).good();
    std::fs::set_permissions(site.at("open.key"), PermissionsExt::from_mode(0o644)).unwrap();
    let listen = free_port();
    let settings = site.kit() + &site.source(&second(&site, "open", "open.key"));
    let settings = settings.replacen("[process]", &format!("[process]\nlisten = \"127.0.0.1:{listen}\""), 1);
    site.write("holdfast.toml", &settings);
    // Alone it ends the process.
    site.holdfast(&["run", "open"]).refused(2, "can be read by everybody");

    let mut both = Running::start(site.command(&["run"]), &site.at("log"));
    let (status, body) =
        both.until(|_| get(listen, "/readyz").filter(|(_, body)| body.contains("waiting for the source")));
    assert!(status.contains("503"), "{status}");
    assert!(body.contains("open failed") && body.contains("can be read by everybody"), "{body}");
    assert!(body.contains("main starting"), "{body}");
    let metrics = get(listen, "/metrics").unwrap().1;
    assert!(metrics.contains("holdfast_phase{source=\"open\",phase=\"failed\"} 1"), "{metrics}");

    // A second process that shares the state folder: «main» is locked, and orders still reach the first.
    site.with_identity(&["source", "add", "more", "--out", "more.key"]).good();
    site.write("second.toml", &(site.kit() + &site.source(&second(&site, "more", "more.key"))));
    let mut other = Running::start(site.command(&["run", "--config", "second.toml"]), &site.at("other.log"));
    other.until(|other| {
        other.log().contains("another holdfast on this host follows «main» already").then_some(())
    });
    other.until(|other| other.log().contains("the source does not answer").then_some(()));
    let order = |config: &str, name: &str| site.holdfast(&["base-backup", name, "--config", config]);
    order("second.toml", "more").good();
    order("holdfast.toml", "main").good();
    let (code, _) = other.stop();
    assert_eq!(code, 2, "the source that was locked is told at the end, too");
    assert!(order("holdfast.toml", "main").good().out.contains("already"));
    order("second.toml", "more").refused(6, "no running holdfast that follows «more»");
    assert_eq!(both.stop().0, 2);
}

#[test]
fn the_key_file_of_another_source_is_refused() {
    let site = Site::new();
    site.with_identity(&["source", "add", "other", "--out", "other.key"]).good();
    std::fs::rename(site.at("other.key"), site.at("main.key")).unwrap();
    site.holdfast(&["run"])
        .refused(2, "the key file of «main» holds the key of source «other»")
        .refused(2, "holdfast source key main");
}

#[test]
fn times_without_sense_are_refused_before_anything_is_done() {
    let site = Site::new();
    site.settings("heartbeat = \"0s\"\n");
    site.holdfast(&["run"]).refused(2, "«heartbeat» in [source.main] is 0ms: it may be from 1s to 1h");
    site.settings("");
    site.with_identity(&["hold", "main", "--keep", "999999d"]).refused(2, "longer than a year");
}
