//! Stores that fail in every way we know of: each failure gets the act that helps, and each call ends.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

mod common;

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use common::{Reply, Stub, at, connect, settings};
use holdfast_core::{
    Act, Clock, Random, Sink,
    sink::{Body, Created, Operation, Range, RetrySettings, decorate, list_all},
};
use holdfast_harness::{Fault, Rule, S3Local, Toxic};
use holdfast_s3::{S3Settings, S3Sink};

async fn stubbed(
    answer: impl Fn(&common::Request) -> Reply + Send + Sync + 'static,
) -> (Stub, S3Sink, tempfile::TempDir) {
    let stub = Stub::start(answer).await;
    let folder = tempfile::tempdir().unwrap();
    let settings =
        S3Settings { stall_timeout: Duration::from_secs(1), ..at(&stub.endpoint, "AK", "SK", folder.path()) };
    let sink = connect(settings).await;
    (stub, sink, folder)
}

#[tokio::test(flavor = "multi_thread")]
async fn one_plain_put_with_its_condition() {
    let (stub, sink, _folder) = stubbed(|_| Reply::ok()).await;
    let body = Body(vec![Bytes::from_static(b"one "), Bytes::new(), Bytes::from_static(b"two")]);
    assert_eq!(sink.create("log/1", body).await.unwrap(), Created::New);
    sink.create("large", Body::from(vec![7; 5 << 20])).await.unwrap();
    let seen = stub.requests();
    assert_eq!(seen.len(), 2, "one request an object");
    let put = &seen[0];
    assert!(put.is("PUT", "/bucket/log/1"), "{put:?}");
    assert_eq!(put.body, b"one two");
    assert_eq!(put.header("if-none-match"), "*");
    assert_eq!(put.header("content-length"), "7");
    assert_eq!(put.header("x-amz-content-sha256").len(), 64, "without TLS the payload is hashed");
    for absent in [
        "transfer-encoding",
        "x-amz-trailer",
        "content-encoding",
        "x-amz-decoded-content-length",
        "x-amz-checksum-crc32",
        "x-amz-sdk-checksum-algorithm",
    ] {
        assert_eq!(put.header(absent), "", "{absent} in {put:?}");
    }
    assert_eq!(seen[1].body.len(), 5 << 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn unsigned_bodies_pass_through_slice_by_slice() {
    let stub = Stub::start(|_| Reply::ok()).await;
    let folder = tempfile::tempdir().unwrap();
    let settings = S3Settings {
        sign_payload: Some(false),
        checksum: true,
        ..at(&stub.endpoint, "AK", "SK", folder.path())
    };
    let sink = connect(settings).await;
    let parts = vec![Bytes::from(vec![1; 300_000]), Bytes::from(vec![2; 5])];
    sink.create("packs/1", Body(parts.clone())).await.unwrap();
    let put = stub.requests().remove(0);
    assert_eq!(put.body, parts.concat());
    assert_eq!(put.header("x-amz-content-sha256"), "UNSIGNED-PAYLOAD");
    assert_eq!(put.header("transfer-encoding"), "");
    assert_eq!(put.header("x-amz-checksum-crc32c").len(), 8, "{put:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_never_answers_costs_one_deadline() {
    let (_stub, sink, _folder) = stubbed(|_| Reply::Silence).await;
    let began = Instant::now();
    let names = ["a".to_owned()];
    let (create, read, list, remove, probe) = tokio::join!(
        sink.create("a", Body::from(vec![1; 2 << 20])),
        sink.read("a", Range::All),
        sink.list("", None, 10),
        sink.remove(&names),
        sink.capabilities()
    );
    let errors =
        [create.unwrap_err(), read.unwrap_err(), list.unwrap_err(), remove.unwrap_err(), probe.unwrap_err()];
    for error in errors {
        assert_eq!(error.act(), Act::Retry, "{}", error.chain());
    }
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    assert!(
        S3Settings::default().stall_timeout + S3Settings::default().connect_timeout < Duration::from_secs(30)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_does_not_even_read_costs_one_deadline() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    for sign in [true, false] {
        let stall_timeout = Duration::from_secs(1);
        let settings = S3Settings {
            stall_timeout,
            sign_payload: Some(sign),
            ..at(&endpoint, "AK", "SK", folder.path())
        };
        let sink = connect(settings).await;
        let began = Instant::now();
        let error = sink.create("a", Body::from(vec![1; 64 << 20])).await.unwrap_err();
        assert_eq!(error.act(), Act::Retry, "{}", error.chain());
        assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_there_and_cut_lines_are_passing() {
    let (_stub, sink, folder) = stubbed(|request| match request.method.as_str() {
        "GET" if request.target.contains("list-type") => Reply::Cut,
        "GET" => Reply::Short { length: 1000, bytes: vec![1; 10] },
        _ => Reply::Cut,
    })
    .await;
    let port_closed = at("http://127.0.0.1:1", "AK", "SK", folder.path());
    for error in [
        sink.create("a", Body::from(vec![1; 5 << 20])).await.unwrap_err(),
        sink.read("a", Range::All).await.unwrap_err(),
        sink.read("a", Range::Part { from: 0, length: 2000 }).await.unwrap_err(),
        sink.list("", None, 5).await.unwrap_err(),
        connect(port_closed).await.create("a", Body::default()).await.unwrap_err(),
    ] {
        assert_eq!(error.act(), Act::Retry, "{}", error.chain());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_stops_coming_ends_the_read() {
    let (_stub, sink, _folder) =
        stubbed(|_| Reply::ShortAndSilent { length: 1000, bytes: vec![1; 10] }).await;
    let began = Instant::now();
    let error = sink.read("a", Range::All).await.unwrap_err();
    assert_eq!(error.act(), Act::Retry, "{}", error.chain());
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_inside_a_success_is_an_error() {
    let (stub, sink, _folder) = stubbed(|request| match request.method.as_str() {
        "PUT" if request.target.contains("slow") => Reply::error(200, "SlowDown"),
        "PUT" => Reply::error(200, "InternalError"),
        "POST" if request.target.contains("delete") && request.body.windows(6).any(|w| w == b"locked") => Reply::Answer(
            200,
            "<DeleteResult><Error><Key>a</Key><Code>AccessDenied</Code><Message>locked</Message></Error></DeleteResult>".to_owned(),
        ),
        "GET" if request.target.contains("versioning") => Reply::Answer(200, "<VersioningConfiguration/>".to_owned()),
        _ => Reply::error(200, "InternalError"),
    })
    .await;
    let act = |error: holdfast_core::Error| (error.act(), error.chain());
    let (got, chain) = act(sink.create("a", Body::from(vec![1])).await.unwrap_err());
    assert_eq!(got, Act::Retry, "{chain}");
    assert!(chain.contains("InternalError"), "{chain}");
    let (got, chain) = act(sink.create("slow", Body::from(vec![1])).await.unwrap_err());
    assert_eq!(got, Act::SlowDown, "{chain}");
    let (got, chain) = act(sink.list("", None, 5).await.unwrap_err());
    assert_eq!(got, Act::Retry, "{chain}");
    let (got, chain) = act(sink.remove(&["a".to_owned()]).await.unwrap_err());
    assert_eq!(got, Act::Retry, "{chain}");
    let (got, chain) = act(sink.remove(&["locked".to_owned()]).await.unwrap_err());
    assert_eq!(got, Act::Configure, "{chain}");
    assert!(chain.contains("s3:DeleteObject"), "{chain}");
    assert!(stub.requests().iter().all(|request| request.method != "HEAD"));
}

#[tokio::test(flavor = "multi_thread")]
async fn rights_are_named() {
    let (_stub, sink, _folder) = stubbed(|_| Reply::error(403, "AccessDenied")).await;
    let names = ["a".to_owned()];
    for (result, right) in [
        (sink.create("a", Body::default()).await.map(|_| ()), "s3:PutObject"),
        (sink.read("a", Range::All).await.map(|_| ()), "s3:GetObject"),
        (sink.list("a", None, 5).await.map(|_| ()), "s3:ListBucket"),
        (sink.remove(&names).await, "s3:DeleteObject"),
    ] {
        let error = result.unwrap_err();
        assert!(error.act() == Act::Configure && error.to_string().contains(right), "{}", error.chain());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_status_of_old_versions_may_be_forbidden() {
    let names: Mutex<HashSet<String>> = Mutex::default();
    let (_stub, sink, _folder) = stubbed(move |request| match request.method.as_str() {
        "PUT" if !names.lock().unwrap().insert(request.target.clone()) => {
            Reply::error(412, "PreconditionFailed")
        }
        "PUT" => Reply::ok(),
        "GET" if request.target.contains("?versioning") || request.target.contains("?object-lock") => {
            Reply::error(403, "AccessDenied")
        }
        "GET" if request.target.contains("twice") => Reply::Answer(200, "first".to_owned()),
        "POST" => Reply::error(403, "AccessDenied"),
        _ => Reply::error(500, "InternalError"),
    })
    .await;
    let error = sink.capabilities().await.unwrap_err();
    assert_eq!(error.act(), Act::Retry, "the race could not be read back: {}", error.chain());

    let names: Mutex<std::collections::HashMap<String, Vec<u8>>> = Mutex::default();
    let (_stub, sink, _folder) = stubbed(move |request| {
        let path = request.target.split('?').next().unwrap().to_owned();
        let mut names = names.lock().unwrap();
        match request.method.as_str() {
            "PUT" if names.contains_key(&path) => Reply::error(412, "PreconditionFailed"),
            "PUT" => {
                names.insert(path, request.body.clone());
                Reply::ok()
            }
            "GET" => match names.get(&path) {
                Some(body) => Reply::Answer(200, String::from_utf8(body.clone()).unwrap()),
                None => Reply::error(403, "AccessDenied"),
            },
            _ => Reply::error(403, "AccessDenied"),
        }
    })
    .await;
    let found = sink.capabilities().await.unwrap();
    assert!(found.create_only, "a writer without rights to remove or to look at versions works");
    assert!(found.history.contains("unknown"), "{}", found.history);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_becomes_exists_and_reads_back() {
    let (store, folder) = (S3Local::start().unwrap(), tempfile::tempdir().unwrap());
    let toxic = Toxic::before(store.store()).unwrap();
    let sink = connect(settings(toxic.store(), folder.path())).await;
    toxic.set([Rule::new(Fault::LoseAnswer).path("log/7").times(1)]);
    let body = Body::from(vec![9; 100_000]);
    let first = sink.create("log/7", body.clone()).await.unwrap_err();
    assert_eq!(first.act(), Act::Retry, "{}", first.chain());
    assert_eq!(sink.create("log/7", body.clone()).await.unwrap(), Created::Exists);
    assert_eq!(sink.read("log/7", Range::All).await.unwrap().unwrap(), body.concat());
    assert_eq!(toxic.passed().puts, 2, "the SDK tries nothing again behind our back");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_throttles_every_third_request_gets_everything() {
    let (store, folder) = (S3Local::start().unwrap(), tempfile::tempdir().unwrap());
    let toxic = Toxic::before(store.store()).unwrap();
    let raw = Arc::new(connect(settings(toxic.store(), folder.path())).await);
    let retry = RetrySettings { pause: Duration::from_millis(10), in_flight: 32, ..RetrySettings::default() };
    let (sink, meter) = decorate(raw, retry, None, |_| true, Clock::system(), Random::system());
    toxic.set([Rule::new(Fault::Status(503)).every(3), Rule::new(Fault::Reset).every(10)]);
    let names: Vec<String> = (0..120).map(|n| format!("log/{n:03}")).collect();
    let creates = names.iter().map(|name| sink.create(name, Body::from(name.clone().into_bytes())));
    for created in futures::future::join_all(creates).await {
        created.unwrap();
    }
    toxic.clear();
    let all = list_all(&*sink, "log/", None).await.unwrap();
    assert_eq!(all.into_iter().map(|entry| entry.name).collect::<Vec<_>>(), names);
    let create = meter.figures().into_iter().find(|f| f.operation == Operation::Create).unwrap();
    assert!(create.slow_down >= 40 && create.retries >= create.slow_down, "{create:?}");
    assert_eq!((create.done, create.failed, create.exists), (120, 0, 0), "{create:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_checks_before_it_writes_is_found_out() {
    let names: Mutex<HashSet<String>> = Mutex::default();
    let late = Duration::from_millis(100);
    let (stub, sink, _folder) = stubbed(move |request| {
        let path = request.target.split('?').next().unwrap().to_owned();
        match request.method.as_str() {
            // Whoever asks while another writes is told that the name is free.
            "PUT" if path.contains("race") => Reply::Later(late, 200, String::new()),
            "PUT" if !names.lock().unwrap().insert(path.clone()) => Reply::error(412, "PreconditionFailed"),
            "PUT" => Reply::ok(),
            "GET" if path.contains("twice") => Reply::Answer(200, "first".to_owned()),
            _ => Reply::error(501, "NotImplemented"),
        }
    })
    .await;
    assert!(!sink.capabilities().await.unwrap().create_only);
    assert_eq!(sink.create("a", Body::default()).await.unwrap(), Created::New);
    assert_eq!(
        sink.create("a", Body::default()).await.unwrap_err().act(),
        Act::Retry,
        "412 to a plain put is odd"
    );
    assert_eq!(stub.requests().last().unwrap().header("if-none-match"), "", "plain puts from now on");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_refuses_the_condition_is_found_out() {
    let (stub, sink, _folder) = stubbed(|request| match request.method.as_str() {
        "PUT" if request.header("if-none-match") == "*" => Reply::error(501, "NotImplemented"),
        "PUT" => Reply::ok(),
        _ => Reply::error(501, "NotImplemented"),
    })
    .await;
    let before = sink.create("a", Body::default()).await.unwrap_err();
    assert_eq!(before.act(), Act::Configure, "{}", before.chain());
    assert!(!sink.capabilities().await.unwrap().create_only);
    assert_eq!(sink.create("a", Body::default()).await.unwrap(), Created::New);
    assert_eq!(stub.requests().last().unwrap().header("if-none-match"), "");
}

#[tokio::test(flavor = "multi_thread")]
async fn conflicts_in_the_probe_are_losers_not_errors() {
    let names: Mutex<std::collections::HashMap<String, Vec<u8>>> = Mutex::default();
    let (_stub, sink, _folder) = stubbed(move |request| {
        let path = request.target.split('?').next().unwrap().to_owned();
        let mut names = names.lock().unwrap();
        match request.method.as_str() {
            "PUT" if names.contains_key(&path) && path.contains("race") => {
                Reply::error(409, "ConditionalRequestConflict")
            }
            "PUT" if names.contains_key(&path) => Reply::error(412, "PreconditionFailed"),
            "PUT" => {
                names.insert(path, request.body.clone());
                Reply::ok()
            }
            "GET" if names.contains_key(&path) => {
                Reply::Answer(200, String::from_utf8(names[&path].clone()).unwrap())
            }
            _ => Reply::error(501, "NotImplemented"),
        }
    })
    .await;
    assert!(sink.capabilities().await.unwrap().create_only);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_wants_a_checksum_gets_one() {
    let (stub, sink, _folder) = stubbed(|request| match request.header("x-amz-checksum-crc32c") {
        "" => Reply::Answer(
            400,
            "<Error><Code>InvalidRequest</Code><Message>Content-MD5 OR x-amz-checksum- HTTP header is required for Put Object requests with Object Lock parameters</Message></Error>".to_owned(),
        ),
        _ => Reply::ok(),
    })
    .await;
    let error = sink.create("a", Body::from(b"123456789".to_vec())).await.unwrap_err();
    assert_eq!(error.act(), Act::Retry, "{}", error.chain());
    assert_eq!(sink.create("a", Body::from(b"123456789".to_vec())).await.unwrap(), Created::New);
    // 0xe3069283 is the CRC32C of these nine digits in its specification.
    assert_eq!(stub.requests()[1].header("x-amz-checksum-crc32c"), "4waSgw==");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_without_ranges_is_cut_to_size_here() {
    let (_stub, sink, _folder) = stubbed(|_| Reply::Answer(200, "0123456789".to_owned())).await;
    let part = |from, length| sink.read("a", Range::Part { from, length });
    assert_eq!(part(3, 4).await.unwrap().unwrap(), "3456");
    assert_eq!(part(8, 40).await.unwrap().unwrap(), "89");
    assert_eq!(part(10, 1).await.unwrap().unwrap(), "");
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_means_that_the_store_said_so() {
    let (_stub, sink, _folder) = stubbed(|request| match request.target.as_str() {
        target if target.contains("missing") => Reply::error(404, "NoSuchKey"),
        target if target.contains("bucket-gone") => Reply::error(404, "NoSuchBucket"),
        _ => Reply::Answer(404, "<html>nothing here</html>".to_owned()),
    })
    .await;
    assert_eq!(sink.read("missing", Range::All).await.unwrap(), None);
    assert_eq!(sink.read("bucket-gone", Range::All).await.unwrap_err().act(), Act::Configure);
    let error = sink.read("web-server", Range::All).await.unwrap_err();
    assert_eq!(
        error.act(),
        Act::Configure,
        "a page of a web server is no proof of absence: {}",
        error.chain()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_nobody_of_us_wrote_takes_no_memory() {
    let (_stub, sink, _folder) = stubbed(|_| Reply::Short { length: 1 << 40, bytes: vec![0; 100] }).await;
    let error = sink.read("a", Range::All).await.unwrap_err();
    assert_eq!(error.act(), Act::Corrupt, "{}", error.chain());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listing_out_of_order_is_refused() {
    let page = |keys: &[&str]| {
        let contents: String = keys.iter().map(|key| format!("<Contents><Key>{key}</Key><Size>1</Size><LastModified>2026-11-30T00:00:00.000Z</LastModified></Contents>")).collect();
        format!("<ListBucketResult><IsTruncated>false</IsTruncated>{contents}</ListBucketResult>")
    };
    let (good, bad) = (page(&["a/", "a/1", "a/2"]), page(&["b/2", "b/1"]));
    let (_stub, sink, _folder) = stubbed(move |request| match request.target.contains("prefix=a") {
        true => Reply::Answer(200, good.clone()),
        false => Reply::Answer(200, bad.clone()),
    })
    .await;
    let listed = sink.list("a/", None, 10).await.unwrap();
    assert_eq!(
        listed.entries.iter().map(|e| e.name.as_str()).collect::<Vec<_>>(),
        ["a/1", "a/2"],
        "no folder markers"
    );
    assert_eq!(listed.entries[0].modified.to_string(), "2026-11-30T00:00:00Z");
    let error = sink.list("b/", None, 10).await.unwrap_err();
    assert_eq!(error.act(), Act::Configure, "{}", error.chain());
    let error = sink.list("a/", Some("a/1"), 10).await.unwrap_err();
    assert_eq!(error.act(), Act::Configure, "a store that ignores start-after would be asked for ever");
}

#[tokio::test(flavor = "multi_thread")]
async fn removal_without_batches_goes_one_by_one() {
    let gone = Arc::new(AtomicUsize::new(0));
    let count = gone.clone();
    let (_stub, sink, _folder) = stubbed(move |request| match request.method.as_str() {
        "DELETE" => {
            count.fetch_add(1, SeqCst);
            Reply::Answer(204, String::new())
        }
        _ => Reply::error(501, "NotImplemented"),
    })
    .await;
    let names: Vec<String> = (0..20).map(|n| format!("n/{n}")).collect();
    sink.remove(&names).await.unwrap();
    assert_eq!(gone.load(SeqCst), 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_go_through_a_proxy() {
    let stub = Stub::start(|_| Reply::ok()).await;
    let folder = tempfile::tempdir().unwrap();
    let settings = S3Settings {
        proxy: Some(stub.endpoint.clone()),
        ..at("http://store.invalid:9000", "AK", "SK", folder.path())
    };
    connect(settings).await.create("a", Body::from(vec![1])).await.unwrap();
    let seen = stub.requests();
    assert!(seen[0].target.starts_with("http://store.invalid:9000/bucket/a"), "{seen:?}");
}
