//! Credentials that change while we run. What comes by environment runs in a process of its own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

mod common;

use std::{process::Command, sync::Mutex, time::Duration};

use common::{Reply, Request, Stub, at, connect};
use holdfast_core::{
    Act, Sink,
    sink::{Body, Created},
};
use holdfast_s3::S3Settings;

/// The access key of a signed request.
fn key(request: &Request) -> String {
    let header = request.header("authorization");
    let after = header.split_once("Credential=").map_or("", |(_, rest)| rest);
    after.split('/').next().unwrap_or_default().to_owned()
}

/// Takes `NEW…` keys; all others have expired.
fn only_new(request: &Request) -> Reply {
    if key(request).starts_with("NEW") { Reply::ok() } else { Reply::error(400, "ExpiredToken") }
}

#[tokio::test(flavor = "multi_thread")]
async fn key_files_are_read_again() {
    let stub = Stub::start(only_new).await;
    let folder = tempfile::tempdir().unwrap();
    let settings = at(&stub.endpoint, "OLD", "secret", folder.path());
    let sink = connect(settings.clone()).await;
    let error = sink.create("a", Body::default()).await.unwrap_err();
    assert_eq!(error.act(), Act::Retry, "new ones may come: {}", error.chain());
    assert!(error.to_string().contains("expired"), "{error}");
    assert_eq!(stub.requests().len(), 1, "the same credentials are not tried twice");
    // Same length, within the second: no look at the file's age could tell.
    std::fs::write(settings.access_key_file.unwrap(), "NEW\n").unwrap();
    assert_eq!(sink.create("a", Body::default()).await.unwrap(), Created::New);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shared_credentials_file_is_read_again() {
    let stub = Stub::start(|_| Reply::ok()).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("credentials");
    let write = |key: &str| {
        let next = folder.path().join("next");
        std::fs::write(&next, format!("[default]\naws_access_key_id = X\naws_secret_access_key = X\n[backup]\naws_access_key_id = {key}\naws_secret_access_key = s\n")).unwrap();
        std::fs::rename(next, &file).unwrap();
    };
    write("FIRST");
    let settings = S3Settings {
        access_key_file: None,
        secret_key_file: None,
        credentials_file: Some(file.clone()),
        profile: Some("backup".to_owned()),
        ..at(&stub.endpoint, "", "", folder.path())
    };
    let sink = connect(settings).await;
    sink.create("a", Body::default()).await.unwrap();
    write("SECOND");
    tokio::time::sleep(Duration::from_millis(1100)).await;
    sink.create("b", Body::default()).await.unwrap();
    let keys: Vec<_> = stub.requests().iter().map(key).collect();
    assert_eq!(keys, ["FIRST", "SECOND"], "no failed request was needed");
}

/// Runs a test of this file alone, with an environment.
fn with_environment(test: &str, variables: &[(&str, &str)]) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--ignored", "--nocapture"]);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("AWS_")) {
        command.env_remove(name);
    }
    command.env("HOME", "/nonexistent").env("AWS_EC2_METADATA_DISABLED", "true");
    let output = command.envs(variables.iter().copied()).output().unwrap();
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

async fn from_environment(endpoint: &str) -> holdfast_s3::S3Sink {
    connect(S3Settings {
        bucket: "bucket".to_owned(),
        endpoint: Some(endpoint.to_owned()),
        proxy: Some("none".to_owned()),
        ..S3Settings::default()
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn static_ones_by_environment() {
    let stub = Stub::start(|_| Reply::ok()).await;
    let variables = [
        ("STORE", stub.endpoint.as_str()),
        ("AWS_ACCESS_KEY_ID", "ENV"),
        ("AWS_SECRET_ACCESS_KEY", "s"),
        ("AWS_SESSION_TOKEN", "t"),
        ("AWS_REGION", "eu-north-1"),
    ];
    tokio::task::block_in_place(|| with_environment("inside_once", &variables));
    let request = stub.requests().remove(0);
    assert_eq!(key(&request), "ENV");
    assert_eq!(request.header("x-amz-security-token"), "t");
    assert!(request.header("authorization").contains("/eu-north-1/s3/"), "{request:?}");
}

#[tokio::test]
#[ignore = "run by the tests of this file that set an environment"]
async fn inside_once() {
    from_environment(&std::env::var("STORE").unwrap()).await.create("a", Body::default()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn none_at_all() {
    tokio::task::block_in_place(|| with_environment("inside_none", &[]));
}

#[tokio::test]
#[ignore = "run by none_at_all"]
async fn inside_none() {
    let error = from_environment("http://127.0.0.1:1").await.create("a", Body::default()).await.unwrap_err();
    assert_eq!(error.act(), Act::Configure, "{}", error.chain());
    assert!(error.to_string().contains("AWS_ACCESS_KEY_ID"), "{error}");
}

fn rfc3339(after: Duration) -> String {
    holdfast_core::Clock::system().wall().plus(after).to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_renews_them_before_they_end() {
    let given = Mutex::new(0);
    let stub = Stub::start(move |request| {
        if !request.target.starts_with("/credentials") {
            return only_new(request);
        }
        let mut given = given.lock().unwrap();
        *given += 1;
        let (name, life) = if *given == 1 { ("NEW1", 2) } else { ("NEW2", 3600) };
        let expiry = rfc3339(Duration::from_secs(life));
        Reply::Answer(
            200,
            format!(
                r#"{{"AccessKeyId":"{name}","SecretAccessKey":"s","Token":"t","Expiration":"{expiry}"}}"#
            ),
        )
    })
    .await;
    let source = format!("{}/credentials", stub.endpoint);
    let variables =
        [("STORE", stub.endpoint.as_str()), ("AWS_CONTAINER_CREDENTIALS_FULL_URI", source.as_str())];
    tokio::task::block_in_place(|| with_environment("inside_container", &variables));
    let keys: Vec<_> = stub.requests().iter().filter(|request| request.method == "PUT").map(key).collect();
    assert_eq!(keys, ["NEW1", "NEW2"]);
}

#[tokio::test]
#[ignore = "run by a_container_renews_them_before_they_end"]
async fn inside_container() {
    let sink = from_environment(&std::env::var("STORE").unwrap()).await;
    sink.create("a", Body::default()).await.unwrap();
    tokio::time::sleep(Duration::from_millis(2500)).await;
    sink.create("b", Body::default()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_web_identity_becomes_a_role() {
    let stub = Stub::start(|request| {
        if request.method != "POST" {
            return only_new(request);
        }
        let body = String::from_utf8_lossy(&request.body).into_owned();
        assert!(body.contains("AssumeRoleWithWebIdentity") && body.contains("the-token"), "{body}");
        let expiry = rfc3339(Duration::from_secs(3600));
        Reply::Answer(200, format!(
            "<AssumeRoleWithWebIdentityResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><AssumeRoleWithWebIdentityResult>\
             <Credentials><AccessKeyId>NEWROLE</AccessKeyId><SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken>\
             <Expiration>{expiry}</Expiration></Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"
        ))
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, "the-token").unwrap();
    let variables = [
        ("STORE", stub.endpoint.as_str()),
        ("AWS_WEB_IDENTITY_TOKEN_FILE", token.to_str().unwrap()),
        ("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/backup"),
        ("AWS_ENDPOINT_URL_STS", stub.endpoint.as_str()),
    ];
    tokio::task::block_in_place(|| with_environment("inside_once", &variables));
    let put = stub.requests().into_iter().find(|request| request.method == "PUT").unwrap();
    assert_eq!((key(&put).as_str(), put.header("x-amz-security-token")), ("NEWROLE", "t"));
}
