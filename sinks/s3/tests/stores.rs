//! The suite of all sinks on real stores, over both kinds of line.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

mod common;

use std::sync::Arc;

use aws_sdk_s3::{
    Client,
    config::{BehaviorVersion, Builder, Credentials, Region},
    types::{BucketVersioningStatus, VersioningConfiguration},
};
use common::{connect, settings};
use holdfast_core::{
    Act, Clock, Random, Sink,
    sink::{Body, Created, Range, RetrySettings, decorate},
};
use holdfast_harness::{Certificates, Conditions, S3Local, Store, Weed};
use holdfast_s3::{S3Settings, S3Sink};
use holdfast_testkit::SinkSuite;

#[tokio::test(flavor = "multi_thread")]
async fn in_process_plain() {
    let (store, folder) = (S3Local::start().unwrap(), tempfile::tempdir().unwrap());
    let sink = connect(settings(store.store(), folder.path())).await;
    SinkSuite::new(Arc::new(sink), "suite").run().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn in_process_tls_below_a_prefix_and_decorated() {
    let certificates = Certificates::new().unwrap();
    let (store, folder) = (S3Local::start_tls(&certificates).unwrap(), tempfile::tempdir().unwrap());
    let settings =
        S3Settings { prefix: "backups/db-1/".to_owned(), ..settings(store.store(), folder.path()) };
    let raw = Arc::new(connect(settings).await);
    let (sink, meter) = decorate(
        raw,
        RetrySettings::default(),
        Some(10 << 30),
        |name| name.starts_with("suite/race"),
        Clock::system(),
        Random::system(),
    );
    SinkSuite::new(sink, "suite").run().await;
    let create = meter.figures().into_iter().find(|f| f.operation.name() == "create").unwrap();
    assert!(create.done > 200 && create.exists > 60 && create.busy == 0, "{create:?}");
    let outside: Vec<_> =
        std::fs::read_dir(store.objects()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(
        outside.iter().all(|name| name == "backups" || name.to_string_lossy().starts_with('.')),
        "{outside:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_ignores_the_condition_is_found_out() {
    let store = S3Local::start_with(Conditions::Ignored, None).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let sink = connect(settings(store.store(), folder.path())).await;
    SinkSuite::new(Arc::new(sink), "suite").overwriting().run().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn seaweedfs() {
    let weed = Weed::start().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let sink = connect(settings(weed.store(), folder.path())).await;
    SinkSuite::new(Arc::new(sink), "suite").by_folder().run().await;
    old_versions_go_too(weed.store(), folder.path()).await;
}

async fn old_versions_go_too(store: &Store, folder: &std::path::Path) {
    let client = client(store);
    client.create_bucket().bucket("versioned").send().await.unwrap();
    let on = VersioningConfiguration::builder().status(BucketVersioningStatus::Enabled).build();
    client.put_bucket_versioning().bucket("versioned").versioning_configuration(on).send().await.unwrap();
    let settings =
        S3Settings { bucket: "versioned".to_owned(), prefix: "p".to_owned(), ..settings(store, folder) };
    let sink = connect(settings).await;
    let found = sink.capabilities().await.unwrap();
    assert!(found.create_only);
    assert!(found.history.contains("old versions") && !found.history.contains("no old"), "{}", found.history);
    assert_eq!(sink.create("log/1", vec![1; 10].into()).await.unwrap(), Created::New);
    let other = client.put_object().bucket("versioned").key("p/log/1").body(vec![2; 20].into());
    other.send().await.unwrap();
    client.delete_object().bucket("versioned").key("p/log/1").send().await.unwrap();
    assert_eq!(sink.create("log/10", vec![1; 10].into()).await.unwrap(), Created::New);
    sink.remove(&["log/1".to_owned(), "log/absent".to_owned()]).await.unwrap();
    let left = client.list_object_versions().bucket("versioned").prefix("p/log/").send().await.unwrap();
    let keys: Vec<_> = left.versions().iter().filter_map(|v| v.key()).collect();
    assert_eq!(keys, ["p/log/10"], "the neighbour with the same beginning stays");
    assert!(left.delete_markers().is_empty());
    assert_eq!(sink.create("log/1", vec![3; 10].into()).await.unwrap(), Created::New);
}

fn client(store: &Store) -> Client {
    let credentials = Credentials::new(&store.access_key, &store.secret_key, None, None, "test");
    Client::from_conf(
        Builder::new()
            .behavior_version(BehaviorVersion::latest())
            .region(Region::new(store.region.clone()))
            .endpoint_url(&store.endpoint)
            .force_path_style(true)
            .credentials_provider(credentials)
            .build(),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_nobody_vouches_for_is_refused() {
    let certificates = Certificates::new().unwrap();
    let (store, folder) = (S3Local::start_tls(&certificates).unwrap(), tempfile::tempdir().unwrap());
    let good = settings(store.store(), folder.path());
    let sink = connect(S3Settings { ca_file: None, ..good.clone() }).await;
    let error = sink.read("a", Range::All).await.unwrap_err();
    assert_eq!(error.act(), Act::Configure, "{}", error.chain());
    assert!(error.to_string().contains("ca_file"), "{error}");
    for (content, why) in [
        ("rubbish", "no certificate"),
        ("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "cannot be used"),
    ] {
        let file = folder.path().join("bad.pem");
        std::fs::write(&file, content).unwrap();
        let bad = S3Settings { ca_file: Some(file), ..good.clone() };
        let error = S3Sink::connect(bad, Clock::system(), Random::system()).await.err().unwrap();
        assert!(error.act() == Act::Configure && error.to_string().contains(why), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_keys_and_buckets_say_what_to_change() {
    let (store, folder) = (S3Local::start().unwrap(), tempfile::tempdir().unwrap());
    let good = settings(store.store(), folder.path());
    let sink = connect(S3Settings { bucket: "other".to_owned(), ..good.clone() }).await;
    // s3s-fs makes a bucket by writing to it, so only the listing can tell here; the stub tells of the others.
    let error = sink.list("", None, 1).await.unwrap_err();
    assert_eq!(error.act(), Act::Configure, "{}", error.chain());
    assert!(error.to_string().contains("NoSuchBucket"), "{error}");
    std::fs::write(good.secret_key_file.as_ref().unwrap(), "wrong").unwrap();
    let sink = connect(good.clone()).await;
    let error = sink.create("a", Body::from(vec![1])).await.unwrap_err();
    assert_eq!(error.act(), Act::Configure, "{}", error.chain());
    assert!(!error.chain().contains("wrong"), "a secret reached a log: {}", error.chain());
    std::fs::remove_file(good.secret_key_file.as_ref().unwrap()).unwrap();
    let sink = connect(good).await;
    let error = sink.create("a", Body::from(vec![1])).await.unwrap_err();
    assert_eq!(error.act(), Act::Configure, "{}", error.chain());
    assert!(error.chain().contains("secret-key"), "the missing file is named: {}", error.chain());
}
