//! `restore`: resolve, hold, plan, apply, leave a session for `wal-fetch`.

mod answer;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use holdfast_core::{Clock, Error, Moment, Restorer, Result, Wish};
use holdfast_postgres::restore::{
    Action, Choice, OWN_FOLDER, Owner, PostgresRestorer, Session, Target, command_word, is_finished,
    start_check::{StartCheck, start_check},
};
use holdfast_repo::{
    hold::{KeptHold, Placed},
    view::LineageView,
};
use nix::unistd::{Group, User};

use self::answer::{Done, Planned};
use crate::{
    cli::{RecoveryAction, Restore},
    config::Config,
    holding, output,
    reading::{Opened, Reader},
    session::Blob,
};

const COMPLETE: &str = "This restore is complete already; nothing is left to do.";
/// Longest replay that a start check waits for.
const START_PATIENCE: Duration = Duration::from_secs(24 * 3600);

pub async fn run(args: &Restore, config: &Config, json: bool) -> Result<()> {
    let wish = wish(args)?;
    if args.exclusive && matches!(wish, Wish::Latest | Wish::Immediate) {
        return Err(Error::configure(
            "--exclusive stops just before a commit, record or point that was named: give it with --at, --lsn, --xid or --name",
        ));
    }
    let restorer = restorer(args)?;
    let opened = Reader::open_with(config, &args.identity).await?.source(config, &args.name).await?;
    // The hold comes before the plan (R9), so that nothing planned is removed meanwhile.
    let hold = if args.plan { None } else { place_hold(&opened).await? };
    let (view, moment) = resolve(args, &opened, &restorer, &wish).await?;
    for damage in view.damage() {
        eprintln!("note: {damage}");
    }
    let plan = restorer.plan(&moment, &view).await?;
    let mut summary = plan.summary();
    summary.lines.extend(new_folders(&restorer.target));
    let complete = summary.conflicts.is_empty() && is_finished(&restorer.target.data)?;
    if args.plan {
        if json {
            output::json(&Planned::new(&summary, complete))?;
        } else if complete {
            output::line(COMPLETE);
        } else {
            output::line(summary.to_string().trim_end());
        }
        return conflicts(&summary.conflicts);
    }
    if !json && !complete {
        eprint!("{summary}");
    }
    conflicts(&summary.conflicts)?;
    let blob = Blob::new(&config.repository, &view.pass(&moment.path).await?)?;
    let session = Session::new(&moment, &restorer.target, restorer.follows, &view, blob.text()?)?;
    // Each renewal that came too late makes the plan worthless: before the first byte, and after the last.
    if let Some(hold) = &hold {
        hold.check()?;
    }
    let bar = Arc::new(output::Bar::new());
    let report = plan.apply(Arc::new(view), bar).await?;
    if let Some(hold) = &hold {
        hold.check()?;
    }
    session.save(&restorer.target)?;
    if let Some(hold) = hold {
        holding::release(hold).await;
    }
    let mut lines = report.lines.clone();
    if args.start_check {
        let check = StartCheck {
            bin: args.pg_bin.clone(),
            version: session.server_version,
            role: args.role.clone(),
            keep: args.keep_running,
            patience: START_PATIENCE,
        };
        lines.extend(start_check(&check, &restorer.target, &moment, &Clock::system()).await?);
    }
    if json {
        return output::json(&Done::new(&moment, &report, lines));
    }
    for line in &lines {
        output::line(line);
    }
    Ok(())
}

/// Folders above the target that are not there yet: they are made, and that is said, since it may be a disk that is
/// not mounted.
fn new_folders(target: &Target) -> Vec<(String, String)> {
    let folders = [&target.data].into_iter().chain(&target.wal).chain(target.tablespaces.values());
    let missing = folders.filter_map(|folder| folder.parent().filter(|parent| !parent.exists()));
    let sentence =
        |parent: &Path| format!("{} is not there and is made: is its disk mounted?", parent.display());
    missing.map(|parent| ("new folder".to_owned(), sentence(parent))).collect()
}

fn conflicts(conflicts: &[String]) -> Result<()> {
    match conflicts {
        [] => Ok(()),
        some => Err(Error::configure(format!("nothing was written: {}", some.join("; ")))),
    }
}

fn wish(args: &Restore) -> Result<Wish> {
    Ok(match (&args.at, &args.lsn, args.xid, &args.named) {
        (Some(at), ..) => Wish::Time(at.parse()?),
        (_, Some(lsn), ..) => Wish::Position(lsn.clone()),
        (_, _, Some(xid), _) => Wish::Transaction(xid),
        (.., Some(name)) => Wish::Name(name.clone()),
        _ if args.immediate => Wish::Immediate,
        _ => Wish::Latest,
    })
}

fn restorer(args: &Restore) -> Result<PostgresRestorer> {
    let data = absolute(&args.target)?;
    let program = std::env::current_exe()
        .map_err(|cause| Error::retry("where this program lies cannot be told").because(cause))?;
    // Relative: the server works in its data folder, which may be mounted elsewhere by then.
    let command = format!("{} wal-fetch --own {OWN_FOLDER} %f %p", command_word(&program.to_string_lossy()));
    let mut tablespaces = BTreeMap::new();
    for text in &args.tablespace {
        let (old, new) = text.split_once('=').ok_or_else(|| {
            Error::configure(format!(
                "«{text}» is no tablespace mapping: write OLD=NEW, both absolute folders"
            ))
        })?;
        tablespaces.insert(old.to_owned(), absolute(&PathBuf::from(new))?);
    }
    let target = Target {
        tablespaces,
        wal: args.pg_wal.as_ref().map(absolute).transpose()?,
        action: match args.action {
            RecoveryAction::Promote => Action::Promote,
            RecoveryAction::Pause => Action::Pause,
            RecoveryAction::Shutdown => Action::Shutdown,
        },
        standby: args.standby,
        owner: args.owner.as_deref().map(owner).transpose()?,
        ..Target::new(data, command)
    };
    let choice = Choice { timeline: args.timeline.parse()?, inclusive: !args.exclusive };
    let mut restorer = PostgresRestorer::new(target, choice);
    restorer.follows = args.latest;
    Ok(restorer)
}

/// USER or USER:GROUP, by name or number.
fn owner(text: &str) -> Result<Owner> {
    let (user, group) = text.split_once(':').map_or((text, None), |(user, group)| (user, Some(group)));
    let unknown = |what: &str, name: &str| {
        Error::configure(format!("--owner: there is no {what} «{name}» on this host"))
    };
    let (uid, own) = match user.parse() {
        Ok(uid) => (uid, uid),
        Err(_) => match User::from_name(user) {
            Ok(Some(user)) => (user.uid.as_raw(), user.gid.as_raw()),
            _ => return Err(unknown("user", user)),
        },
    };
    let gid = match group {
        None => own,
        Some(group) => match group.parse() {
            Ok(gid) => gid,
            Err(_) => match Group::from_name(group) {
                Ok(Some(group)) => group.gid.as_raw(),
                _ => return Err(unknown("group", group)),
            },
        },
    };
    Ok(Owner { uid, gid })
}

fn absolute(path: &PathBuf) -> Result<PathBuf> {
    std::path::absolute(path)
        .map_err(|cause| Error::configure(format!("{} is no path", path.display())).because(cause))
}

/// The newest lineage that reaches the moment, unless one was named. What each of them answers is told when
/// none does.
async fn resolve(
    args: &Restore,
    opened: &Opened,
    restorer: &PostgresRestorer,
    wish: &Wish,
) -> Result<(LineageView, Moment)> {
    let newest = opened.view(args.lineage.as_deref()).await?;
    let first = match restorer.resolve(wish, &newest).await {
        Ok(moment) => return Ok((newest, moment)),
        Err(error) => error,
    };
    // «Latest» of an older life is not what anybody means by it.
    if args.lineage.is_some() || !matches!(wish, Wish::Time(_) | Wish::Name(_)) {
        return Err(first);
    }
    let mut answers = first.chain();
    for lineage in opened.lineages.iter().rev().skip(1) {
        let Some(view) = opened.view_of(lineage).await? else { continue };
        match restorer.resolve(wish, &view).await {
            Ok(moment) => return Ok((view, moment)),
            Err(error) => {
                answers += &format!("; of the older lineage {}: {}", lineage.record.identity, error.chain());
            }
        }
    }
    Err(Error::new(first.act(), answers))
}

async fn place_hold(opened: &Opened) -> Result<Option<KeptHold>> {
    match holding::place(opened, "restore").await? {
        Placed::Held(holder) => Ok(Some(holder.keep())),
        Placed::Unheld(error) => {
            tracing::warn!("{error}");
            Ok(None)
        }
    }
}
