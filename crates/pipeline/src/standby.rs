//! When a stream may be claimed. Policy only: fencing is safe whatever is decided here.

use std::time::Duration;

use holdfast_core::{Epoch, Instant, Result, Timestamp};
use holdfast_repo::{
    chain::{Access, Chain},
    names::Stream,
};

use crate::{claim::read_epoch, gauges::Phase, parts::Tools, settings::Takeover};

/// A stream is silent after so many of its own heartbeats in which nothing moved.
const HEARTBEATS: u32 = 3;

/// What shows that a writer lives: its data, or a moved instant. Empty objects alone do not: their writer has
/// lost its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Life {
    epoch: Epoch,
    vouched: Option<Timestamp>,
    data: Option<u64>,
}

/// Returns when the stream may be claimed. `why` says who fenced us before: then the highest epoch is not ours,
/// even if its writer has our instance's id (a copied state folder), and we do not duel with it.
pub(crate) async fn wait(tools: &Tools, stream: Stream, why: Option<&str>) -> Result<()> {
    let access = tools.access(stream);
    let mut seen: Option<(Life, Instant)> = None;
    loop {
        let Some(owner) = look(tools, &access, why.is_some()).await? else { return Ok(()) };
        let now = tools.clock.now();
        let since = match seen {
            Some((life, since)) if life == owner.life => since,
            _ => now,
        };
        seen = Some((owner.life, since));
        let silent = now.saturating_duration_since(since);
        let patience = owner.heartbeat * HEARTBEATS;
        if tools.settings.takeover == Takeover::Silence && silent >= patience {
            tracing::warn!(%stream, epoch = %owner.life.epoch, "the writer fell silent: taking its stream over");
            return Ok(());
        }
        let rule = match tools.settings.takeover {
            Takeover::Silence => {
                format!("it is taken over when nothing moves in it for {} s", patience.as_secs())
            }
            Takeover::Manual => "it is taken over when told to only (takeover = \"manual\")".to_owned(),
        };
        let why = why.map(|why| format!("{why}; ")).unwrap_or_default();
        let epoch = owner.life.epoch;
        tools.gauges.phase(
            Phase::Standby,
            format!("{why}another writer has the stream (epoch {epoch}); {rule}, or start with --take-over"),
        );
        tools.clock.sleep((patience / 4).max(Duration::from_millis(100))).await;
    }
}

struct Owner {
    life: Life,
    heartbeat: Duration,
}

/// `None` when nobody stands in the way.
async fn look(tools: &Tools, access: &Access, fenced: bool) -> Result<Option<Owner>> {
    if tools.settings.take_over {
        return Ok(None);
    }
    let Some(highest) = access.epochs().await?.last().copied() else { return Ok(None) };
    let same = read_epoch(access, highest).await?.is_some_and(|object| object.instance == tools.instance);
    if same && !fenced {
        return Ok(None);
    }
    let Some(chain) = Chain::open(access.clone()).await? else {
        let life = Life { epoch: highest, vouched: None, data: None };
        return Ok(Some(Owner { life, heartbeat: tools.settings.heartbeat }));
    };
    let head = chain.head();
    // A claim above the head that came to nothing does not make a release void.
    if head.header.release && head.at.0 == highest {
        return Ok(None);
    }
    let data = (!head.header.spans.is_empty()).then_some(head.at.1);
    Ok(Some(Owner {
        life: Life { epoch: highest, vouched: head.header.vouched, data },
        heartbeat: Duration::from_millis(u64::from(head.header.heartbeat)),
    }))
}
