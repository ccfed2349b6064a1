//! A store that is away: the sidecar says so everywhere, and goes on.

use std::time::Duration;

use crate::site::{Running, Site, free_port, get};

#[test]
fn a_store_that_is_down_at_the_start_is_named_and_waited_for() {
    let site = Site::new();
    let (listen, nobody) = (free_port(), free_port());
    let repository = format!(
        "[repository]\nid = \"{}\"\nurl = \"s3://bucket/prefix\"\n[repository.s3]\nendpoint = \"http://127.0.0.1:{nobody}\"\n",
        site.id
    );
    let settings = repository
        + &site.source("").replacen("[process]", &format!("[process]\nlisten = \"127.0.0.1:{listen}\""), 1);
    site.write("holdfast.toml", &settings);
    let mut command = site.command(&["run"]);
    command.env("AWS_ACCESS_KEY_ID", "a").env("AWS_SECRET_ACCESS_KEY", "b");
    let mut sidecar = Running::start(command, &site.at("log"));

    let (status, body) =
        sidecar.until(|_| get(listen, "/readyz").filter(|(_, body)| body.contains("127.0.0.1")));
    assert!(status.contains("503"), "{status}");
    assert!(body.contains(&format!("http://127.0.0.1:{nobody}")), "{body}");
    let metrics = get(listen, "/metrics").unwrap().1;
    assert!(metrics.contains("holdfast_store_answers{source=\"main\"} 0"), "{metrics}");
    assert!(metrics.contains("holdfast_at_risk_seconds{source=\"main\"}"), "{metrics}");
    assert!(get(listen, "/").unwrap().1.contains("127.0.0.1"));
    // It tries again, and says so again.
    sidecar.until(|sidecar| (sidecar.log().matches("the store is out of reach").count() >= 2).then_some(()));
    let (code, took) = sidecar.stop();
    assert_eq!(code, 0);
    assert!(took < Duration::from_secs(2), "{took:?}");
}
