//! New clusters in a twentieth of a second: one `initdb` per version and shape, copied, each copy with a system
//! identifier of its own (two clusters of one identifier would be one lineage to us).

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicU64, Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result};

use crate::{User, cache, folder, process};

/// What `initdb` fixes for the life of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub segment_mib: u32,
    pub checksums: bool,
}

/// Makes a new cluster at `data` with the programs in `bin`.
pub fn new_cluster(bin: &Path, shape: Shape, data: &Path) -> Result<()> {
    let template = template(bin, shape)?;
    folder::copy_folder(&template.join("data"), data, &|_| false)?;
    set_identity(data, new_identity())
}

fn template(bin: &Path, shape: Shape) -> Result<PathBuf> {
    let version = process::run(Command::new(bin.join("postgres")).arg("--version"))
        .with_context(|| format!("{} does not run", bin.join("postgres").display()))?;
    let version: String = version.chars().filter(|c| c.is_ascii_digit() || *c == '.').collect();
    // Debian's build and the npm package of one version differ in what they were compiled with.
    let maker = if bin.starts_with("/usr") { "debian" } else { "npm" };
    let name = format!("template/{maker}-{version}-{}-{}", shape.segment_mib, shape.checksums);
    cache::once(&name, |place| {
        let data = place.join("data");
        folder::make_private(&data)?;
        let mut initdb = Command::new(bin.join("initdb"));
        initdb
            .arg("-D")
            .arg(&data)
            .args(["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"])
            .arg(format!("--wal-segsize={}", shape.segment_mib))
            .current_dir("/");
        if shape.checksums {
            initdb.arg("--data-checksums");
        } else if version.starts_with("18") {
            initdb.arg("--no-data-checksums");
        }
        User::drop_root(&mut initdb)?;
        process::run(&mut initdb)?;
        Ok(())
    })
}

/// Seconds of now in the high half, as initdb does it; a process and a counter in the low half.
fn new_identity() -> u64 {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let low = u64::from(now.subsec_micros()) << 12 | u64::from(std::process::id()) & 0xfff;
    (now.as_secs() << 32 | low).wrapping_add(COUNT.fetch_add(1, Ordering::Relaxed) << 13)
}

/// Writes a system identifier into pg_control and into the first page of each WAL segment of a cluster at rest.
fn set_identity(data: &Path, identity: u64) -> Result<()> {
    let path = data.join("global/pg_control");
    let mut control = fs::read(&path)?;
    // The checksum stands behind the last field, whose place differs by version: it is where it fits.
    let at = (8..512)
        .step_by(4)
        .find(|at| {
            let sum =
                control.get(*at..at + 4).map(|bytes| bytes == crc32c::crc32c(&control[..*at]).to_le_bytes());
            sum == Some(true)
        })
        .context("pg_control has no checksum that fits")?;
    control[..8].copy_from_slice(&identity.to_le_bytes());
    let sum = crc32c::crc32c(&control[..at]);
    control[at..at + 4].copy_from_slice(&sum.to_le_bytes());
    fs::write(&path, control)?;
    for entry in fs::read_dir(data.join("pg_wal"))? {
        let entry = entry?;
        if entry.file_type()?.is_file() && entry.file_name().len() == 24 {
            let mut segment = fs::read(entry.path())?;
            // The long page header: 24 bytes of the short one, then the identifier.
            segment
                .get_mut(24..32)
                .context("a WAL segment is too short")?
                .copy_from_slice(&identity.to_le_bytes());
            fs::write(entry.path(), segment)?;
        }
    }
    Ok(())
}
