//! Mistakes that people make in settings, keys, rights and stores: each is refused with an exit code, and with a sentence
//! that names what is wrong and what to do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use holdfast_harness::{
    Certificates, Fault, Major, Options, Rule, S3Local, Server, Store, Toxic, User, process::Guard,
};
use holdfast_integration::{Place, Site};

const PATIENCE: Duration = Duration::from_secs(40);

/// One row: what is wrong, how it is run, and what must be said of it.
struct Mistake {
    what: &'static str,
    settings: String,
    environment: Vec<(&'static str, String)>,
    arguments: Vec<&'static str>,
    code: i32,
    words: Vec<String>,
}

impl Mistake {
    /// Settings in which `from` stands as `to`, found by `holdfast check`.
    fn swap(what: &'static str, good: &str, from: &str, to: &str, words: &[&str]) -> Self {
        assert!(good.contains(from), "{what}: «{from}» is not in\n{good}");
        let words = words.iter().map(|word| (*word).to_owned()).collect();
        let settings = good.replacen(from, to, 1);
        Self { what, settings, environment: Vec::new(), arguments: vec!["check"], code: 2, words }
    }

    /// The settings as they are: the mistake lies elsewhere.
    fn elsewhere(what: &'static str, good: &str, words: &[&str]) -> Self {
        Self::swap(what, good, "", "", words)
    }

    /// A line more in the section of `main`, which is the last one.
    fn line(what: &'static str, good: &str, line: &str, words: &[&str]) -> Self {
        let mut mistake = Self::elsewhere(what, good, words);
        mistake.settings.push_str(&format!("{line}\n"));
        mistake
    }

    fn run(mut self, arguments: &[&'static str]) -> Self {
        self.arguments = arguments.to_vec();
        self
    }

    fn set(mut self, variable: &'static str, value: &str) -> Self {
        self.environment.push((variable, value.to_owned()));
        self
    }
}

/// Tries every row; tells of all that do not say what they should.
async fn all_are_refused(site: &Site, mistakes: Vec<Mistake>) {
    let mut silent = Vec::new();
    for (number, mistake) in mistakes.iter().enumerate() {
        let Mistake { what, settings, environment, arguments, code, words } = mistake;
        let file = site.home().join(format!("mistake-{number}.toml"));
        fs::write(&file, settings).unwrap();
        User::give(&file).unwrap();
        let said = site.home().join(format!("mistake-{number}.said"));
        let out = fs::File::create(&said).unwrap();
        let mut command = site.command(arguments.iter().copied()).unwrap();
        command
            .env("HOLDFAST_CONFIG", &file)
            .envs(environment.iter().map(|(variable, value)| (variable, value)))
            .stdin(Stdio::null())
            .stdout(out.try_clone().unwrap())
            .stderr(out);
        let mut running = Guard::spawn(&mut command).unwrap();
        let ended = running.wait(PATIENCE).await.map(|status| status.code());
        let said = fs::read_to_string(&said).unwrap();
        let missing: Vec<&String> = words.iter().filter(|word| !said.contains(word.as_str())).collect();
        if !missing.is_empty() || !matches!(ended, Ok(Some(ended)) if ended == *code) {
            silent.push(format!("{what}: ended with {ended:?}, not {code}; not said: {missing:?}\n{said}"));
        }
    }
    assert!(silent.is_empty(), "{} of {}:\n{}", silent.len(), mistakes.len(), silent.join("\n"));
}

fn good(site: &Site) -> String {
    fs::read_to_string(site.settings_file()).unwrap()
}

/// A copy of a file of the site's, for a mistake to be made with.
fn copy(site: &Site, from: &str, to: &str, mode: u32) -> PathBuf {
    let path = site.home().join(to);
    fs::copy(site.home().join(from), &path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    User::give(&path).unwrap();
    path
}

fn quoted(path: &Path) -> String {
    format!("{path:?}")
}

#[tokio::test(flavor = "multi_thread")]
async fn in_the_file() {
    let server = Server::start(Major::V18).await.unwrap();
    let site = Site::ready(Place::Folder, &server, "").await.unwrap();
    let good = good(&site);
    let line = |what, line: &str, words: &[&str]| Mistake::line(what, &good, line, words);
    let swap = |what, from: &str, to: &str, words: &[&str]| Mistake::swap(what, &good, from, to, words);
    let given = |key: &str| good.lines().find(|line| line.starts_with(key)).unwrap().to_owned();
    let (id, dsn, key, url, state) =
        (given("id = "), given("dsn = "), given("key_file = "), given("url = "), given("state_dir = "));
    let process = |line: &str| format!("{state}\n{line}");
    let other = |lines: &str| format!("[source.other]\nkind = \"postgres\"\n{lines}");
    let one_slot = other(&format!("key_file = \"other.key\"\n{dsn}\nslot = \"holdfast_main\""));
    let one_key = other(&format!("{key}\ndsn = \"host=/nowhere\""));
    let restore = ["restore", "main", "--identity", "id.key", "--target", "t", "--at", "2026-11-30T14:05:00"];
    let mistakes = vec![
        line("unknown key", "max_lags = \"1s\"", &["[source.main]", "max_lags", "did you mean «max_lag»"]),
        line("unknown key of the pipeline", "hartbeat = \"1s\"", &["did you mean «heartbeat»"]),
        swap("unknown key of the process", "state_dir", "statedir", &["[process]", "«state_dir»"]),
        swap("unknown key of the repository", "url =", "uploadrate = \"1MB\"\nurl =", &["«upload_rate»"]),
        swap("unknown section", "[process]", "[proces]", &["[proces]", "did you mean «process»"]),
        swap("no dsn", &dsn, "", &["[source.main]", "dsn"]),
        swap("no key_file", &key, "", &["[source.main]", "key_file"]),
        swap("no kind", "kind = \"postgres\"", "", &["[source.main]", "kind"]),
        swap("no url", &url, "", &["[repository]", "url"]),
        swap("no id", &id, "", &["id", "init printed", "[repository]"]),
        swap("no source", "[source.main]", "[process.x]", &["[process]"]).run(&["run"]),
        swap("wrong name", "[source.main]", "[source.\"Main DB\"]", &["Main DB", "a-z"]),
        swap("no TOML", "[process]", "[process", &["no TOML", "line"]),
        line("one source twice", "[source.main]", &["no TOML", "duplicate", "main"]),
        line("one slot twice", &one_slot, &["[source.main] and [source.other]", "holdfast_main", "«slot»"]),
        line("one key twice", &one_key, &["[source.main] and [source.other]", "the same key_file"]),
        line("slot of bad letters", "slot = \"Main-Slot\"", &["«slot»", "Main-Slot", "a-z"]),
        swap("unknown scheme", &url, "url = \"gs://a/b\"", &["url", "gs://", "s3://bucket/prefix"]),
        swap("no bucket", &url, "url = \"s3://\"", &["url", "[repository]", "s3://bucket/prefix"]),
        swap("folder not there", &url, "url = \"/nowhere/at-all\"", &["/nowhere/at-all", "mounted"]),
        swap("nowhere to listen", &state, &process("listen = \"here\""), &["listen = \"here\"", "[process]"])
            .run(&["run"]),
        swap("state folder", &state, "state_dir = \"/proc/holdfast\"", &["/proc/holdfast", "state_dir"])
            .run(&["run"]),
        swap("unknown word in dsn", "dsn = \"host=", "dsn = \"hots=x host=", &["«dsn»", "hots", "«host»"]),
        swap("dsn without an end", "dsn = \"host=", "dsn = \"password='x host=", &["«dsn»", "does not end"]),
        Mistake::elsewhere("time without offset", &good, &["2026-11-30T14:05:00", "offset", "+02:00"])
            .run(&restore),
        Mistake::elsewhere("no such source", &good, &["«mian»", "did you mean «main»"])
            .run(&["check", "mian"]),
        Mistake::elsewhere("environment: unknown key", &good, &["max_lags", "did you mean «max_lag»"])
            .set("HOLDFAST_SOURCE__MAIN__MAX_LAGS", "1s"),
        Mistake::elsewhere("environment: half a source", &good, &["[source.other]"])
            .set("HOLDFAST_SOURCE__OTHER__DSN", "host=x"),
    ];
    all_are_refused(&site, mistakes).await;
}

/// Values that cannot be: the sentence names the key, or the variable that set it.
#[tokio::test(flavor = "multi_thread")]
async fn in_values() {
    let server = Server::start(Major::V18).await.unwrap();
    let site = Site::ready(Place::Folder, &server, "").await.unwrap();
    let good = good(&site);
    let line = |what, line: &str, words: &[&str]| Mistake::line(what, &good, line, words);
    let swap = |what, from: &str, to: &str, words: &[&str]| Mistake::swap(what, &good, from, to, words);
    let set = |what, variable, value: &str, words: &[&str]| {
        let mut mistake = Mistake::elsewhere(what, &good, words).set(variable, value);
        mistake.words.push(variable.to_owned());
        mistake
    };
    let process =
        |what, line: &str, words: &[&str]| swap(what, "[process]\n", &format!("[process]\n{line}\n"), words);
    let id = good.lines().find(|line| line.starts_with("id = ")).unwrap();
    let mistakes = vec![
        swap("misspelt dsn", "\ndsn =", "\ndns =", &["[source.main]", "«dns»", "did you mean «dsn»"]),
        swap("misspelt key_file", "\nkey_file =", "\nkeyfile =", &["«keyfile»", "did you mean «key_file»"]),
        swap("misspelt url", "\nurl =", "\nulr =", &["[repository]", "«ulr»", "did you mean «url»"]),
        line(
            "unit in words",
            "max_lag = \"1 minute\"",
            &["«max_lag»", "[source.main]", "1 minute", "\"5min\""],
        ),
        line("no unit", "heartbeat = \"20\"", &["«heartbeat»", "«20»", "\"1s\""]),
        line("a number for a time", "max_lag = 1", &["«max_lag»", "string"]),
        line("negative time", "shutdown_grace = \"-1s\"", &["«shutdown_grace»", "«-1s»"]),
        line("negative size", "base_backup_rate = \"-5MB\"", &["«base_backup_rate»", "«-5MB»", "\"10MB\""]),
        line("size too large", "max_slot_lag = \"99999999TiB\"", &["«max_slot_lag»", "99999999TiB"]),
        process("memory negative", "memory = \"-1GiB\"", &["«memory»", "«-1GiB»"]),
        process("memory too small", "memory = \"1MiB\"", &["memory in [process]", "1 MiB", "64 MiB"])
            .run(&["run"]),
        process("memory as a word", "memory = \"much\"", &["«memory»", "«much»"]),
        process("wrong log", "log = \"xml\"", &["«log»", "xml", "json"]),
        line("wrong ack", "ack = \"sync\"", &["«ack»", "sync", "remote"]),
        line("wrong takeover", "takeover = \"never\"", &["«takeover»", "never", "manual"]),
        line("wrong standby", "standby = \"maybe\"", &["«standby»", "maybe", "refuse"]),
        line("a word for yes", "merge = \"yes\"", &["«merge»", "boolean"]),
        swap("wrong kind", "\"postgres\"", "\"mysql\"", &["«kind»", "mysql", "postgres"]),
        swap(
            "no repository id",
            id,
            "id = \"prod\"",
            &["«id»", "[repository]", "prod", "64 hexadecimal digits"],
        ),
        set("environment: no boolean", "HOLDFAST_SOURCE__MAIN__MERGE", "perhaps", &["boolean"]),
        set("environment: no time", "HOLDFAST_SOURCE__MAIN__HEARTBEAT", "soon", &["«soon»", "\"1s\""]),
        set("environment: no unit", "HOLDFAST_PROCESS__STOP_GRACE", "10", &["string"]),
        set("environment: no size", "HOLDFAST_PROCESS__MEMORY", "much", &["«much»", "\"64MiB\""]),
        set("environment: no key", "HOLDFAST_SOURCE__MAIN__HARTBEAT", "1s", &["did you mean «heartbeat»"]),
    ];
    all_are_refused(&site, mistakes).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn in_keys_and_folders() {
    let server = Server::start(Major::V18).await.unwrap();
    let mut site = Site::ready(Place::Folder, &server, "").await.unwrap();
    let mistaken = good(&site);
    let elsewhere = Site::ready(Place::Folder, &server, "").await.unwrap();
    site.source("other", &server.dsn(), "slot = \"other\"").unwrap();
    site.holdfast(["source", "add", "other", "--identity", "id.key"]).await.unwrap();
    let key = quoted(&site.home().join("main.key"));
    let swap = |what, path: &Path, words: &[&str]| Mistake::swap(what, &mistaken, &key, &quoted(path), words);
    let wide = copy(&site, "main.key", "wide.key", 0o644);
    let identity = copy(&site, "id.key", "not-a-source.key", 0o600);
    let foreign = site.home().join("foreign.key");
    fs::copy(elsewhere.home().join("main.key"), &foreign).unwrap();
    User::give(&foreign).unwrap();
    let closed = site.home().join("closed");
    holdfast_harness::copy_folder(&site.repository(), &closed, &|_| false).unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o555)).unwrap();
    let folder = quoted(&site.repository());
    let id = |site: &Site| {
        let text = good(site);
        text.lines().find_map(|line| line.strip_prefix("id = ")).unwrap().to_owned()
    };
    let mistakes = vec![
        swap("key file missing", &site.home().join("none.key"), &["none.key", "cannot be read"]),
        swap("key file missing, run", &site.home().join("none.key"), &["none.key", "cannot be read"])
            .run(&["run"]),
        swap("key file for everybody", &wide, &["wide.key", "644", "chmod 600"]),
        swap("key file for everybody, run", &wide, &["wide.key", "644", "chmod 600"]).run(&["run"]),
        swap("an identity as key file", &identity, &["not-a-source.key", "source add"]),
        swap("key of another repository", &foreign, &["key", id(&elsewhere).trim_matches('"')]),
        swap("key of another repository, run", &foreign, &["main", id(&elsewhere).trim_matches('"')])
            .run(&["run"]),
        swap("key of another source", &site.home().join("other.key"), &["other.key", "«other»", "key_file"]),
        Mistake::swap(
            "id of another repository",
            &mistaken,
            &id(&site),
            &id(&elsewhere),
            &["id", id(&site).trim_matches('"')],
        ),
        Mistake::swap(
            "id of another repository, run",
            &mistaken,
            &id(&site),
            &id(&elsewhere),
            &["key file of «main»", "correct id in [repository]"],
        )
        .run(&["run"]),
        Mistake::swap(
            "folder not writable",
            &mistaken,
            &folder,
            &quoted(&closed),
            &["closed", "right to read and write"],
        ),
        Mistake::swap(
            "folder without a repository",
            &mistaken,
            &folder,
            &quoted(site.home()),
            &["repository", "init"],
        ),
        Mistake::swap("a file for a folder", &mistaken, &folder, &quoted(&wide), &["wide.key"]),
    ];
    all_are_refused(&site, mistakes).await;
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o755)).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn at_the_server() {
    let certificates = Certificates::new().unwrap();
    let issued = certificates.server().unwrap();
    let access = "local all,replication postgres trust\nhost all,replication postgres 127.0.0.1/32 trust\nlocal all,replication strict scram-sha-256\n\
                  local all,replication plain trust\nlocal all noway trust";
    let options = Options::new(Major::V18).access(access).tls(&issued.certificate, &issued.key);
    let server = options.set("max_replication_slots", "3").start().await.unwrap();
    server
        .sql(
            "create role strict login replication password 'right'; create role plain login; \
              create role noway login replication; \
              select pg_create_physical_replication_slot('a'), pg_create_physical_replication_slot('b')",
        )
        .await
        .unwrap();
    let minimal = Options::new(Major::V18).set("wal_level", "minimal").set("max_wal_senders", "0");
    let minimal = minimal.start().await.unwrap();
    let none = Options::new(Major::V13).set("max_wal_senders", "0").start().await.unwrap();
    let one = Options::new(Major::V17).set("max_wal_senders", "1").start().await.unwrap();
    let logical = Options::new(Major::V16).set("wal_level", "logical").start().await.unwrap();
    logical.sql("select pg_create_logical_replication_slot('holdfast_main', 'pgoutput')").await.unwrap();
    let site = Site::ready(Place::Folder, &server, "").await.unwrap();
    let good = good(&site);
    let dsn = |what, dsn: &str, words: &[&str]| {
        Mistake::swap(what, &good, &format!("{:?}", server.dsn()), &format!("{dsn:?}"), words)
    };
    let user = |user: &str| server.dsn().replace("user=postgres", &format!("user={user}"));
    let tls = |root: &str| format!("{} sslmode=verify-full sslrootcert={root}", server.tcp_dsn());
    let strange = site.home().join("strange.pem");
    fs::write(&strange, Certificates::new().unwrap().authority()).unwrap();
    let other = Site::ready(Place::Folder, &one, "").await.unwrap();
    let mut taken = other.run().unwrap();
    taken.until("holdfast_source_connected", |is| is == 1.0, PATIENCE).await.unwrap();
    let mistakes = vec![
        dsn("nobody there", "host=127.0.0.1 port=1 user=postgres", &["127.0.0.1", "dsn"]),
        dsn("no such socket", "host=/nowhere user=postgres", &["/nowhere", "dsn"]),
        dsn("wrong password", &format!("{} password=wrong", user("strict")), &["password", "strict"]),
        dsn("no password", &user("strict"), &["password", "strict"]),
        dsn("no REPLICATION", &user("plain"), &["REPLICATION", "ALTER ROLE"]),
        dsn("no such role", &user("nobody"), &["nobody", "pg_hba.conf"]),
        dsn("no line in pg_hba.conf", &user("noway"), &["noway", "pg_hba.conf"]),
        dsn("wal_level minimal", &minimal.dsn(), &["wal_level = replica"]),
        dsn("max_wal_senders 0", &none.dsn(), &["max_wal_senders"]),
        dsn("max_wal_senders used up", &one.dsn(), &["max_wal_senders"]),
        dsn("a logical slot of that name", &logical.dsn(), &["holdfast_main", "logical", "«slot»"]),
        dsn("a logical slot of that name, run", &logical.dsn(), &["holdfast_main", "logical", "«slot»"])
            .run(&["run"]),
        dsn("root certificate missing", &tls("/nowhere/ca.pem"), &["/nowhere/ca.pem", "«dsn»"]),
        dsn("authority of somebody else", &tls(&strange.to_string_lossy()), &["TLS", "certificate", "«dsn»"]),
        dsn("unknown sslmode", "host=127.0.0.1 sslmode=maybe", &["sslmode", "maybe", "verify-full"]),
    ];
    all_are_refused(&site, mistakes).await;
    taken.stop().await.unwrap();

    server.sql("select pg_create_physical_replication_slot('c')").await.unwrap();
    let full = Mistake::elsewhere("no room for a slot", &good, &["max_replication_slots", "raise"]);
    all_are_refused(&site, vec![full]).await;
}

/// It is not the end of anything: the other one may leave.
#[tokio::test(flavor = "multi_thread")]
async fn a_slot_in_use_by_another_is_said() {
    let server = Server::start(Major::V18).await.unwrap();
    let first = Site::ready(Place::Folder, &server, "").await.unwrap();
    let mut following = first.run().unwrap();
    following.until("holdfast_source_connected", |is| is == 1.0, PATIENCE).await.unwrap();
    let second = Site::ready(Place::Folder, &server, "").await.unwrap();
    let mut waiting = second.run().unwrap();
    waiting.until_says("the slot holdfast_main is in use: by another holdfast", PATIENCE).await.unwrap();
    assert!(following.stop().await.unwrap().success());
    waiting.until("holdfast_source_connected", |is| is == 1.0, PATIENCE).await.unwrap();
    waiting.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn at_the_store() {
    let server = Server::start(Major::V18).await.unwrap();
    let certificates = Certificates::new().unwrap();
    let tls = S3Local::start_tls(&certificates).unwrap();
    let site = Site::ready(Place::S3(tls.store().clone()), &server, "").await.unwrap();
    let good = good(&site);
    let authority = good.lines().find(|line| line.starts_with("ca_file = ")).unwrap();
    let path_style = "path_style = true\n";
    let swap = |what, from: &str, to: &str, words: &[&str]| Mistake::swap(what, &good, from, to, words);
    let more =
        |what, line: &str, words: &[&str]| swap(what, path_style, &format!("{path_style}{line}\n"), words);
    let strange = site.home().join("strange.pem");
    fs::write(&strange, Certificates::new().unwrap().authority()).unwrap();
    let ca = |path: &Path| format!("ca_file = {path:?}");
    let endpoint = |to: &str| -> (String, String) {
        (format!("endpoint = {:?}", tls.store().endpoint), format!("endpoint = {to:?}"))
    };
    let (from, nobody) = endpoint("https://127.0.0.1:1");
    let (_, nothing) = endpoint("localhost:9000");
    let plain = S3Local::start().unwrap();
    let (_, plainly) = endpoint(&plain.store().endpoint.replace("http://", "https://"));
    let Store { bucket, .. } = tls.store();
    let mistakes = vec![
        swap(
            "bucket missing",
            &format!("s3://{bucket}/"),
            "s3://no-such-bucket/",
            &["no-such-bucket", "is the address right"],
        ),
        swap(
            "bucket missing, run",
            &format!("s3://{bucket}/"),
            "s3://no-such-bucket/",
            &["no-such-bucket", "is the address right"],
        )
        .run(&["run"]),
        swap("authority of somebody else", authority, &ca(&strange), &["certificate", "ca_file"]),
        swap("authority not given", authority, "", &["certificate", "ca_file"]),
        swap("authority missing", authority, &ca(&site.home().join("none.pem")), &["ca_file", "none.pem"]),
        swap("authority is none", authority, &ca(&site.settings_file()), &["ca_file", "certificate"]),
        swap("nobody at the endpoint", &from, &nobody, &["127.0.0.1", "the store was not reached"]),
        swap("endpoint without a scheme", &from, &nothing, &["endpoint", "localhost:9000", "https://"]),
        swap("TLS to a store that has none", &from, &plainly, &["no TLS", "endpoint"]),
        more("unknown key", "regoin = \"x\"", &["regoin", "did you mean «region»"]),
        more("half of the credentials", "access_key_file = \"a\"", &["access_key_file", "secret_key_file"]),
        more(
            "credentials not there",
            "access_key_file = \"/nowhere/a\"\nsecret_key_file = \"/nowhere/b\"",
            &["/nowhere/"],
        ),
        more("a class that cannot be read", "storage_class = \"GLACIER\"", &["storage_class", "GLACIER"]),
        more("a proxy that is none", "proxy = \"::::\"", &["proxy", "http://host:port"]),
        more("no time to connect", "connect_timeout = \"0s\"", &["connect_timeout"]),
        Mistake::elsewhere("wrong secret", &good, &["correct the access key"])
            .set("AWS_SECRET_ACCESS_KEY", "wrong"),
        Mistake::elsewhere("wrong secret, run", &good, &["correct the access key"])
            .set("AWS_SECRET_ACCESS_KEY", "wrong")
            .run(&["run"]),
        Mistake::elsewhere("key of nobody", &good, &["InvalidAccessKeyId", "correct the access key"])
            .set("AWS_ACCESS_KEY_ID", "AKIANOBODY"),
        Mistake::elsewhere("no credentials", &good, &["AWS_ACCESS_KEY_ID", "credentials"])
            .set("AWS_ACCESS_KEY_ID", "")
            .set("AWS_SECRET_ACCESS_KEY", "")
            .set("AWS_EC2_METADATA_DISABLED", "true"),
    ];
    all_are_refused(&site, mistakes).await;

    // Stores of the harness take every region and every bucket: what others say comes from the proxy.
    let toxic = Toxic::before(plain.store()).unwrap();
    let site = Site::ready(Place::S3(toxic.store().clone()), &server, "").await.unwrap();
    let settings = fs::read_to_string(site.settings_file()).unwrap();
    for (status, code, advice) in [
        (400, "AuthorizationHeaderMalformed", "the bucket lies in another region: correct `region`"),
        (301, "PermanentRedirect", "the bucket lies in another region: correct `region`"),
        (403, "AccessDenied", "grant s3:"),
        (404, "NoSuchBucket", "create the bucket"),
    ] {
        toxic.set([Rule::new(Fault::Status(status))]);
        let words = [code, advice];
        let check = Mistake::elsewhere(code, &settings, &words);
        let run = Mistake::elsewhere(code, &settings, &words).run(&["run"]);
        all_are_refused(&site, vec![check, run]).await;
    }
}
