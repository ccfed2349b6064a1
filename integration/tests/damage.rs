//! Damage and mistakes: each kind of object flipped, cut, swapped, missing or rolled back is named by `verify`, refused
//! by the restores that need it, and no matter for those that do not. And keys, identities and rings that are not the
//! right ones. One repository for all cases; each case has a copy of its own (hard links).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use holdfast_harness::{Major, Server, User};
use holdfast_integration::{Place, Sidecar, Site, held, insert, settled};
use tokio::time::sleep;

const PATIENCE: Duration = Duration::from_secs(60);

/// Three epochs: in the first a base backup, merged objects and point `a`; in the second single objects, point `b` and
/// a second base backup; in the third more rows and point `c`. So `a` and `b` stand on the first backup, `c` on the
/// second, and `c` needs nothing of the log up to `b`.
struct Past {
    site: Site,
    server: Server,
    /// Another repository of another owner.
    stranger: Site,
    /// Rows and log positions of the three points.
    points: [(String, String); 3],
    /// As of the end of the second epoch.
    older: PathBuf,
    head: String,
}

async fn past() -> Past {
    let server = Server::start(Major::V18).await.unwrap();
    let site = Site::ready(Place::Folder, &server, "max_lag = \"50ms\"").await.unwrap();
    let (mut next, mut points) = (0, Vec::new());

    let mut sidecar = site.run().unwrap();
    sidecar.backed_up(PATIENCE).await.unwrap();
    let deadline = Instant::now() + PATIENCE;
    while files(&site.repository(), "/merged/").len() < 2 {
        assert!(Instant::now() < deadline, "nothing was merged: {}", sidecar.log());
        trickle(&server, &mut next, 10).await;
    }
    points.push(point(&server, &mut next, "a").await);
    // Resolving a position reads some log beyond it.
    server
        .sql("create table between as select md5(i::text) m from generate_series(1, 5000) i")
        .await
        .unwrap();
    stop(&server, sidecar).await;

    let mut sidecar = site.run().unwrap();
    sidecar.until_phase("streaming", PATIENCE).await.unwrap();
    trickle(&server, &mut next, 12).await;
    points.push(point(&server, &mut next, "b").await);
    settled(&server, PATIENCE).await.unwrap();
    server
        .sql("create table filler as select md5(i::text) m from generate_series(1, 20000) i")
        .await
        .unwrap();
    let began = "holdfast_restorable_from_seconds";
    let first = sidecar.until(began, |at| at > 0.0, PATIENCE).await.unwrap();
    site.holdfast(["base-backup", "main"]).await.unwrap();
    sidecar.until(began, |at| at > first, PATIENCE).await.unwrap();
    stop(&server, sidecar).await;
    let older = site.home().join("older");
    copy(&site.repository(), &older);

    let mut sidecar = site.run().unwrap();
    sidecar.until_phase("streaming", PATIENCE).await.unwrap();
    trickle(&server, &mut next, 12).await;
    points.push(point(&server, &mut next, "c").await);
    stop(&server, sidecar).await;

    let status: serde_json::Value =
        serde_json::from_str(&site.holdfast(["status", "main", "--json"]).await.unwrap()).unwrap();
    let head = text_of(&status, "head").unwrap_or_else(|| panic!("no head in {status}"));
    let stranger = Site::ready(Place::Folder, &server, "").await.unwrap();
    Past { site, server, stranger, points: points.try_into().unwrap(), older, head }
}

/// The first text of this name, wherever it is.
fn text_of(value: &serde_json::Value, name: &str) -> Option<String> {
    match value {
        serde_json::Value::Object(map) => match map.get(name).and_then(serde_json::Value::as_str) {
            Some(text) => Some(text.to_owned()),
            None => map.values().find_map(|value| text_of(value, name)),
        },
        serde_json::Value::Array(list) => list.iter().find_map(|value| text_of(value, name)),
        _ => None,
    }
}

async fn trickle(server: &Server, next: &mut i64, rows: usize) {
    for _ in 0..rows {
        *next += 1;
        insert(server, *next).await.unwrap();
        sleep(Duration::from_millis(55)).await;
    }
}

/// Makes a restore point; the rows as of it, and where it ends.
async fn point(server: &Server, next: &mut i64, name: &str) -> (String, String) {
    let rows = held(server).await.unwrap();
    let lsn = server.value(&format!("select pg_create_restore_point('{name}')::text")).await.unwrap();
    // The server writes the point out with the next commit.
    trickle(server, next, 1).await;
    (rows, lsn)
}

async fn stop(server: &Server, sidecar: Sidecar) {
    settled(server, PATIENCE).await.unwrap();
    assert!(sidecar.stop().await.unwrap().success());
}

/// Names of the objects that hold `part`, in order.
fn files(repository: &Path, part: &str) -> Vec<String> {
    let (mut names, mut folders) = (Vec::new(), vec![repository.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let name = path.strip_prefix(repository).unwrap().to_string_lossy().into_owned();
            if format!("/{name}").contains(part) {
                names.push(name);
            }
        }
    }
    names.sort();
    names
}

/// A copy whose files are links: what is damaged is written anew.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    fs::set_permissions(to, fs::metadata(from).unwrap().permissions()).unwrap();
    User::give(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() { copy(&path, &target) } else { fs::hard_link(&path, &target).unwrap() }
    }
}

fn replace(path: &Path, bytes: &[u8]) {
    fs::remove_file(path).ok();
    fs::write(path, bytes).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap();
    User::give(path).unwrap();
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Damage {
    Flipped,
    Cut,
    Swapped,
    Missing,
}

const DAMAGES: [Damage; 4] = [Damage::Flipped, Damage::Cut, Damage::Swapped, Damage::Missing];

struct Kind {
    name: &'static str,
    /// The object that is damaged, and the one that takes its place when they are swapped.
    object: String,
    other: PathBuf,
    /// Points that need it, and one that does not.
    needed_by: &'static [&'static str],
    spared: Option<usize>,
}

impl Kind {
    /// Exit code, and what must be named.
    fn expected(&self, how: Damage) -> (i32, String) {
        match (self.name, how) {
            // Whole, and another repository's: the settings name ours.
            ("repo.json", Damage::Swapped) => (2, "the repository here is".to_owned()),
            ("repo.json", Damage::Missing) => (2, "there is no repository at".to_owned()),
            // The generation before knows of no source. Who remembers a head, or has a key file, sees more.
            ("repository ring", Damage::Missing) => (2, "there is no source «main»".to_owned()),
            // The only generation: no name is left to be told.
            ("source ring", Damage::Missing) => (5, "/ring/ is missing".to_owned()),
            // An object of many: the one original in it; and that there was a merged one is told by nobody.
            ("merged", Damage::Flipped | Damage::Missing) => (5, "/log/0000000000000001/".to_owned()),
            // Some sentences name it from its lineage on.
            ("log", _) => (5, self.object.split_once('/').unwrap().1.to_owned()),
            _ => (5, self.object.clone()),
        }
    }
}

impl Past {
    fn kinds(&self) -> Vec<Kind> {
        let repository = self.site.repository();
        let own = |name: &str| repository.join(name);
        let strange = |part: &str| {
            let folder = self.stranger.repository();
            let name = files(&folder, part).pop().unwrap();
            folder.join(name)
        };
        let epochs = files(&repository, "/epochs/");
        assert_eq!(epochs.len(), 3, "{epochs:?}");
        let of = |kind: &str, epoch: usize| {
            let number = epochs[epoch].rsplit('/').next().unwrap();
            files(&repository, &format!("/{kind}/{number}/"))
        };
        let (log, merged) = (of("log", 1), of("merged", 0));
        let rings = files(&repository, "/ring/");
        let (of_source, of_repository): (Vec<_>, Vec<_>) =
            rings.into_iter().partition(|name| !name.starts_with("ring/"));
        let (pack, state) = (of("packs", 1), of("state", 1));
        let kind = |name, object: &str, other, needed_by, spared| Kind {
            name,
            object: object.to_owned(),
            other,
            needed_by,
            spared,
        };
        vec![
            kind("repo.json", "repo.json", strange("/repo.json"), &["c"], None),
            kind("repository ring", of_repository.last().unwrap(), strange("/ring/"), &["c"], None),
            kind("source ring", of_source.last().unwrap(), strange("/ring/"), &["c"], None),
            kind("epoch", &epochs[1], own(&epochs[0]), &["b", "c"], Some(0)),
            kind("log", &log[4], own(&log[5]), &["b"], Some(0)),
            kind("merged", &merged[1], own(&merged[0]), &["a"], Some(2)),
            kind("pack", pack.last().unwrap(), own(&of("packs", 0)[0]), &["c"], Some(0)),
            kind("state", &state[0], own(&of("state", 0)[0]), &["c"], Some(0)),
        ]
    }

    /// A site on a copy of the repository.
    fn lane(&self) -> Site {
        self.site.another().unwrap()
    }
}

fn damage(repository: &Path, kind: &Kind, how: Damage) {
    let path = repository.join(&kind.object);
    let mut bytes = fs::read(&path).unwrap();
    match how {
        Damage::Flipped => {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 0x10;
            replace(&path, &bytes);
        }
        Damage::Cut => replace(&path, &bytes[..bytes.len() - bytes.len() / 3]),
        Damage::Swapped => replace(&path, &fs::read(&kind.other).unwrap()),
        Damage::Missing => fs::remove_file(&path).unwrap(),
    }
}

/// Not to be had: refused with a sentence, or the recovery stops at it; never something that looks complete. What was
/// said.
async fn refused(site: &Site, like: &Server, point: &str, what: &str) -> String {
    let target = site.home().join("refused");
    let path = target.to_string_lossy().into_owned();
    let (code, said) = site
        .says(["restore", "main", "--identity", "id.key", "--target", &path, "--name", point])
        .await
        .unwrap();
    let said = if code == 0 {
        let mut server = Server::adopt_stopped(like.options().clone(), &target).await.unwrap();
        server.launch().unwrap();
        let deadline = Instant::now() + PATIENCE;
        while server.exited().unwrap().is_none() {
            let ended = server.log().contains("archive recovery complete");
            assert!(!ended && Instant::now() < deadline, "{what}: point {point}\n{}", server.log());
            sleep(Duration::from_millis(50)).await;
        }
        server.log()
    } else {
        assert!(!target.join("global/pg_control").exists(), "{what}: it failed and looks complete: {said}");
        said
    };
    fs::remove_dir_all(&target).ok();
    said
}

async fn cases(past: Arc<Past>, kinds: Vec<Kind>) {
    let mut site = past.lane();
    for kind in kinds {
        for how in DAMAGES {
            let what = format!("{} {how:?} ({})", kind.name, kind.object);
            let folder = site.home().join("case");
            copy(&past.site.repository(), &folder);
            damage(&folder, &kind, how);
            site.move_to(Place::At(folder.clone())).unwrap();

            let (code, named) = kind.expected(how);
            let (ended, said) = site.says(["verify", "main", "--identity", "id.key"]).await.unwrap();
            assert!(ended == code && said.contains(&named), "{what}: verify ended with {ended}: {said}");
            for point in kind.needed_by {
                let said = refused(&site, &past.server, point, &what).await;
                assert!(said.contains(&named), "{what}: of point {point} it is said: {said}");
            }
            if let Some(spared) = kind.spared {
                let (rows, lsn) = &past.points[spared];
                let target = site.restore("spared", &["--lsn", lsn]).await;
                let target = target.unwrap_or_else(|cause| panic!("{what} closes {lsn}, too: {cause:#}"));
                // Once a kind; the other restores have read all but the log.
                if how == Damage::Missing {
                    let server = Server::adopt(past.server.options().clone(), &target).await.unwrap();
                    server.wait_for("select not pg_is_in_recovery()", PATIENCE).await.unwrap();
                    assert_eq!(held(&server).await.unwrap(), *rows, "{what}");
                }
                fs::remove_dir_all(target).unwrap();
            }
            fs::remove_dir_all(&folder).unwrap();
        }
    }
}

/// The whole repository as it was earlier: consistent in itself, so only who remembers a head can tell.
async fn rolled_back(past: &Past) {
    let mut site = past.lane();
    let expect = ["status", "main", "--expect", &past.head];
    let (code, said) = site.says(expect).await.unwrap();
    assert_eq!(code, 0, "{said}");
    site.move_to(Place::At(past.older.clone())).unwrap();
    let (code, said) = site.says(expect).await.unwrap();
    assert!(code == 5 && said.contains(&past.head) && said.contains("rolled back"), "{code}: {said}");
}

/// Keys and identities that are not the right ones, and half ones.
async fn mistakes(past: &Past) {
    let mut site = past.lane();
    // With a key file of its own.
    site.source("main", &past.server.dsn(), "").unwrap();
    let restore = |identity: &'static str| {
        ["restore", "main", "--identity", identity, "--target", "nothing", "--latest"]
    };
    let key = fs::read_to_string(site.home().join("main.key")).unwrap();
    let identity = fs::read_to_string(site.home().join("id.key")).unwrap();
    let give = |name: &str, text: &str| {
        let path = site.home().join(name);
        replace(&path, text.as_bytes());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    };
    let strange = |name: &str| fs::read_to_string(past.stranger.home().join(name)).unwrap();
    give("other.key", &strange("id.key"));
    give("half.key", &identity[..identity.trim_end().len() - 9]);

    for (identity, part) in [("other.key", "identity"), ("half.key", "half.key"), ("none.key", "none.key")] {
        let (code, said) = site.says(restore(identity)).await.unwrap();
        assert!(code == 2 && said.contains(part), "{identity}: {code}: {said}");
        assert!(!site.home().join("nothing").exists(), "{identity}: it was refused and wrote");
    }
    for (what, text) in
        [("another's", strange("main.key")), ("half", key[..key.trim_end().len() - 9].to_owned())]
    {
        give("main.key", &text);
        for command in [&["verify", "main"][..], &["status", "main"], &["run"]] {
            let (code, said) = site.says(command.iter().copied()).await.unwrap();
            assert!(code == 2 && said.contains("key"), "{what}: {command:?} ended with {code}: {said}");
        }
    }
    give("main.key", &key);
    // The settings name another repository than the one that lies there.
    site.move_to(Place::At(past.stranger.repository())).unwrap();
    for command in [&["verify", "main"][..], &["run"], &restore("id.key")] {
        let (code, said) = site.says(command.iter().copied()).await.unwrap();
        let named =
            said.contains("the repository here is") && said.contains("another one was put in its place");
        assert!(code == 2 && named, "{command:?} ended with {code}: {said}");
    }
}

/// The store's owner adds a recipient: itself. Unsigned, and signed by a root key of its own.
async fn strange_recipients(past: &Past) {
    let mut site = past.lane();
    let rings = |folder: &Path| {
        let (of_source, of_repository): (Vec<_>, Vec<_>) =
            files(folder, "/ring/").into_iter().partition(|name| !name.starts_with("ring/"));
        (of_source, of_repository)
    };
    let (of_source, of_repository) = rings(&past.site.repository());
    let (strange_source, strange_repository) = rings(&past.stranger.repository());
    let forged = |ring: &str, strange: &str| {
        let own = fs::read_to_string(past.site.repository().join(ring)).unwrap();
        let strange = fs::read_to_string(past.stranger.repository().join(strange)).unwrap();
        let recipients = |text: &str| {
            let json: serde_json::Value = serde_json::from_str(text.splitn(3, '\n').nth(2).unwrap()).unwrap();
            json["recipients"][0].as_str().unwrap().to_owned()
        };
        // Ours with another recipient under our signature, and one that its own root signed.
        [own.replace(&recipients(&own), &recipients(&strange)), strange]
    };
    let pairs = [
        (of_source.last().unwrap(), strange_source.last().unwrap()),
        (of_repository.last().unwrap(), strange_repository.last().unwrap()),
    ];
    for (ring, strange) in pairs {
        for (signed, text) in forged(ring, strange).into_iter().enumerate() {
            let folder = site.home().join("forged");
            copy(&past.site.repository(), &folder);
            let (parent, number) = ring.rsplit_once('/').unwrap();
            let next = u64::from_str_radix(number, 16).unwrap() + 1;
            let name = format!("{parent}/{next:016x}");
            replace(&folder.join(&name), text.as_bytes());
            site.move_to(Place::At(folder.clone())).unwrap();
            let restore = ["restore", "main", "--identity", "id.key", "--target", "nothing", "--latest"];
            let (code, said) = site.says(restore).await.unwrap();
            assert!(code == 5 && said.contains(&name), "reader, {name}, {signed}: {code}: {said}");
            // A sidecar seals to recipients of the source's ring.
            if parent != "ring" {
                let before = files(&folder, "/epochs/").len();
                let mut sidecar = site.run().unwrap();
                sidecar.until_says(&name, PATIENCE).await.unwrap();
                sidecar.stop().await.unwrap();
                assert_eq!(files(&folder, "/epochs/").len(), before, "{name}: a writer claimed");
            }
            fs::remove_dir_all(&folder).unwrap();
        }
    }
}

/// Several minutes of history and hours of waiting are scaled to batches of 50 ms.
#[tokio::test(flavor = "multi_thread")]
async fn damage_and_mistakes_are_named_and_contained() {
    let past = Arc::new(past().await);
    let mut first = past.kinds();
    let second = first.split_off(5);
    let others = async {
        rolled_back(&past).await;
        mistakes(&past).await;
        strange_recipients(&past).await;
    };
    tokio::join!(others, cases(past.clone(), first), cases(past.clone(), second));
}
