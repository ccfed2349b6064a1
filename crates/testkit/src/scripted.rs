//! A source made of arithmetic, and its tailer: what byte stands at which place is known to everybody, so a
//! restore can be checked without keeping anything. Forgets what it is told to forget, like a real one.

use std::{
    collections::BTreeSet,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::BoxFuture;
use holdfast_core::{
    Branch, Clock, Content, Cursor, Error, Finished, Follower, Gap, Held, Identity, Instant, Item, Mark,
    MarkKind, Place, Random, Result, Row, Settler, Span, State, Step, Tailer, Timestamp, digest,
};

/// The only branch.
pub const BRANCH: Branch = Branch(1);
const RECORD_MAX: u64 = 900;

/// Cloning shares the source.
#[derive(Clone)]
pub struct ScriptedSource {
    clock: Clock,
    random: Random,
    script: Script,
    inner: Arc<Mutex<Inner>>,
}

/// What the source does.
#[derive(Clone, Copy, Debug)]
pub struct Script {
    /// Where its log begins.
    pub start: u64,
    pub bytes_per_second: u64,
    /// It writes nothing more after this time.
    pub busy_for: Duration,
    /// One step holds at most so many bytes.
    pub step_bytes: u64,
    /// Chance in thousandths that somebody waits for a step.
    pub waits: u64,
    /// Chance in thousandths that the connection breaks at a step.
    pub breaks: u64,
    /// A run begins so often; zero: never.
    pub run_every: Duration,
    pub run_pieces: u64,
    /// A run takes so long, at least.
    pub run_takes: Duration,
}

struct Inner {
    began: Instant,
    /// The source may have forgotten everything before this.
    forgotten: u64,
    trace: Vec<String>,
    next_run: Option<Instant>,
    runs: u64,
    unreachable: bool,
    refusing: bool,
    /// Tailers that cannot reach it, by name.
    cut_off: BTreeSet<String>,
}

/// Byte at a place of the log. Mixed twice: after one multiplication it would repeat itself, and a log that is sealed
/// to nothing fills no memory.
fn byte(at: u64) -> u8 {
    let once = at.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((once ^ once >> 32).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 56) as u8
}

/// Bytes of the log.
pub fn log_bytes(from: u64, to: u64) -> Bytes {
    (from..to).map(byte).collect::<Vec<u8>>().into()
}

/// Where the record ends that holds the byte at `at`: records have a few hundred bytes each.
pub fn record_end(at: u64) -> u64 {
    // Cells of a fixed size, each with one boundary at a place of its own.
    let bound = |cell: u64| cell * RECORD_MAX + u64::from(byte(cell)) * 3;
    let cell = at / RECORD_MAX;
    if at < bound(cell) { bound(cell) } else { bound(cell + 1) }
}

/// Piece number `piece` of a run that began at `began`.
pub fn piece_bytes(began: u64, piece: u64) -> Bytes {
    let seed = began.wrapping_mul(31).wrapping_add(piece);
    (0..200 + seed % 1800).map(|at| byte(seed.wrapping_mul(77).wrapping_add(at))).collect::<Vec<u8>>().into()
}

/// Where a cursor goes on.
pub fn cursor_at(cursor: &Cursor) -> Option<u64> {
    cursor.0.as_ref().try_into().ok().map(u64::from_le_bytes)
}

fn cursor(at: u64) -> Cursor {
    Cursor(Bytes::copy_from_slice(&at.to_le_bytes()))
}

impl ScriptedSource {
    pub fn new(clock: Clock, random: Random, script: Script) -> Self {
        let began = clock.now();
        let inner = Inner {
            began,
            forgotten: script.start,
            trace: Vec::new(),
            next_run: (!script.run_every.is_zero()).then_some(began),
            runs: 0,
            unreachable: false,
            refusing: false,
            cut_off: BTreeSet::new(),
        };
        Self { clock, random, script, inner: Arc::new(Mutex::new(inner)) }
    }

    /// What it holds now, from its start on. Ends at a record end once it is quiet.
    pub fn head(&self) -> u64 {
        let began = self.lock().began;
        let busy = self.clock.now().saturating_duration_since(began).min(self.script.busy_for);
        let written = busy.as_micros() * u128::from(self.script.bytes_per_second) / 1_000_000;
        let head = self.script.start + u64::try_from(written).unwrap_or(u64::MAX);
        if busy < self.script.busy_for { head } else { record_end(head) }
    }
    pub fn busy_for(&self) -> Duration {
        self.script.busy_for
    }
    /// Up to where it was told to forget.
    pub fn settled(&self) -> u64 {
        self.lock().forgotten
    }
    /// Cuts the source off, or brings it back.
    pub fn set_unreachable(&self, unreachable: bool) {
        self.lock().unreachable = unreachable;
    }
    /// Lets nobody in until a person has set it right, as after a change of the password.
    pub fn set_refusing(&self, refusing: bool) {
        self.lock().refusing = refusing;
    }
    /// Cuts one tailer off, or brings it back.
    pub fn set_cut_off(&self, name: &str, cut_off: bool) {
        let mut inner = self.lock();
        if cut_off {
            inner.cut_off.insert(name.to_owned());
        } else {
            inner.cut_off.remove(name);
        }
    }
    pub fn runs(&self) -> u64 {
        self.lock().runs
    }
    pub fn trace(&self) -> Vec<String> {
        self.lock().trace.clone()
    }
    /// A tailer that knows itself by `name` in the trace.
    pub fn tailer(&self, name: impl Into<String>) -> Arc<dyn Tailer> {
        Arc::new(ScriptedTailer { source: self.clone(), name: name.into() })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn note(&self, name: &str, line: &str) {
        let at = self.clock.wall();
        self.lock().trace.push(format!("{} {name} {line}", at.micros()));
    }
    fn reach(&self, name: &str) -> Result<()> {
        let inner = self.lock();
        if inner.refusing {
            Err(Error::configure("the source refuses the password"))
        } else if inner.unreachable || inner.cut_off.contains(name) {
            Err(Error::retry("the source does not answer"))
        } else {
            Ok(())
        }
    }
}

struct ScriptedTailer {
    source: ScriptedSource,
    name: String,
}

#[async_trait]
impl Tailer for ScriptedTailer {
    async fn identity(&self) -> Result<Identity> {
        self.source.clock.sleep(Duration::from_millis(1)).await;
        self.source.reach(&self.name)?;
        Ok(Identity { text: "arithmetic".to_owned() })
    }

    async fn open(
        &self,
        from: Option<Cursor>,
        content: Arc<dyn Content>,
        _state: Arc<dyn State>,
    ) -> Result<(Box<dyn Follower>, Box<dyn Settler>)> {
        self.source.clock.sleep(Duration::from_millis(1)).await;
        self.source.reach(&self.name)?;
        let start = self.source.script.start;
        let at = match &from {
            Some(from) => {
                cursor_at(from).ok_or_else(|| Error::lost_lineage("this cursor is none of ours"))?
            }
            None => start,
        };
        let forgotten = self.source.settled();
        self.source.note(&self.name, &format!("opens at {at}, kept from {forgotten}"));
        let gap = (at < forgotten).then(|| Gap {
            span: Span { branch: BRANCH, from: at, to: forgotten },
            cause: "the source has let it go".to_owned(),
            noticed: self.source.clock.wall(),
        });
        let follower = ScriptedFollower {
            source: self.source.clone(),
            name: self.name.clone(),
            content,
            at: at.max(forgotten),
            gap,
            target: None,
            quiet_at: self.source.clock.now(),
            caught_up: false,
            run: None,
            finished: None,
        };
        let settler = ScriptedSettler { source: self.source.clone(), name: self.name.clone() };
        Ok((Box::new(follower), Box::new(settler)))
    }
}

struct ScriptedFollower {
    source: ScriptedSource,
    name: String,
    content: Arc<dyn Content>,
    at: u64,
    gap: Option<Gap>,
    /// What was there when we began: once it is in the stream, we have caught up.
    target: Option<u64>,
    quiet_at: Instant,
    caught_up: bool,
    run: Option<BoxFuture<'static, Result<Finished>>>,
    finished: Option<Finished>,
}

impl ScriptedFollower {
    fn step(&self, item: Item, waits: bool) -> Step {
        let held_all = self.at == self.source.head();
        let vouched = held_all.then(|| (self.source.clock.now(), self.source.clock.wall()));
        Step { item, cursor: cursor(self.at), vouched, waits }
    }

    fn log(&mut self, head: u64) -> Step {
        let script = self.source.script;
        let length = 1 + self.source.random.below(script.step_bytes.min(head - self.at));
        let (from, to) = (self.at, self.at + length);
        let mut marks = Vec::new();
        let mut begin = from;
        loop {
            let end = record_end(begin);
            if end > to {
                break;
            }
            marks.push(mark(begin, end));
            begin = end;
        }
        self.at = to;
        let whole = marks.last().is_some_and(|mark| mark.place.position == to);
        let span = Span { branch: BRANCH, from, to };
        let waits = self.source.random.below(1000) < script.waits;
        self.step(Item::Log { span, bytes: log_bytes(from, to), whole, marks }, waits)
    }

    fn begin_run(&mut self) {
        let now = self.source.clock.now();
        let due = self.source.lock().next_run.is_some_and(|at| at <= now);
        if due && self.run.is_none() && self.finished.is_none() {
            let every = self.source.script.run_every;
            self.source.lock().next_run = Some(now + every);
            self.run = Some(Box::pin(run(self.source.clone(), self.content.clone(), self.at)));
        }
    }
}

/// The mark of the record that ends at `end`; its time is the place.
pub fn mark(begin: u64, end: u64) -> Mark {
    Mark {
        begin,
        place: Place { branch: BRANCH, position: end },
        time: Timestamp(i64::try_from(end).unwrap_or(i64::MAX)),
        kind: MarkKind::Commit { id: end },
    }
}

async fn run(source: ScriptedSource, content: Arc<dyn Content>, began: u64) -> Result<Finished> {
    let script = source.script;
    let time = source.clock.wall();
    let mut run = content.begin(time, Bytes::copy_from_slice(&began.to_le_bytes())).await?;
    let pause = script.run_takes / u32::try_from(script.run_pieces.max(1)).unwrap_or(u32::MAX);
    for piece in 0..script.run_pieces {
        source.clock.sleep(pause).await;
        let bytes = piece_bytes(began, piece);
        let hash = digest(&bytes);
        let extent = content.put(bytes).await?.extent().await?;
        let key = Bytes::copy_from_slice(&piece.to_be_bytes());
        run.row(Row { key, value: Bytes::copy_from_slice(&hash), held: vec![Held { extent, hash }] }).await?;
    }
    let place = |position| Place { branch: BRANCH, position };
    let serves = source.head();
    let body = Bytes::copy_from_slice(&began.to_le_bytes());
    run.finish(place(began), place(serves), source.clock.wall(), None, body).await
}

#[async_trait]
impl Follower for ScriptedFollower {
    async fn next(&mut self) -> Result<Step> {
        let clock = self.source.clock.clone();
        if let Some(gap) = self.gap.take() {
            return Ok(self.step(Item::Gap(gap), false));
        }
        loop {
            self.source.reach(&self.name)?;
            let head = self.source.head();
            let target = *self.target.get_or_insert(head);
            self.begin_run();
            if let Some(finished) = self.finished.take_if(|f| f.checkpoint.serves.position <= self.at) {
                self.source.lock().runs += 1;
                return Ok(self.step(Item::Finished(finished), false));
            }
            if self.at < head {
                if self.source.random.below(1000) < self.source.script.breaks {
                    self.source.note(&self.name, "loses its connection");
                    return Err(Error::retry("the connection broke"));
                }
                return Ok(self.log(head));
            }
            if self.at >= target && !self.caught_up {
                self.caught_up = true;
                return Ok(self.step(Item::CaughtUp, false));
            }
            let now = clock.now();
            if now >= self.quiet_at {
                self.quiet_at = now + Duration::from_secs(1);
                return Ok(self.step(Item::Quiet, false));
            }
            let wait = clock.sleep((self.quiet_at - now).min(Duration::from_millis(90)));
            tokio::select! {
                biased;
                finished = poll(self.run.as_mut().map(BoxFuture::as_mut)) => {
                    self.run = None;
                    self.finished = Some(finished?);
                }
                () = wait => {}
            }
        }
    }
}

async fn poll<F: Future + ?Sized>(future: Option<Pin<&mut F>>) -> F::Output {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

struct ScriptedSettler {
    source: ScriptedSource,
    name: String,
}

#[async_trait]
impl Settler for ScriptedSettler {
    async fn settle(&mut self, cursor: &Cursor) -> Result<()> {
        let at = cursor_at(cursor).ok_or_else(|| Error::bug("a cursor that is none of ours was settled"))?;
        self.source.note(&self.name, &format!("settles {at}"));
        let mut inner = self.source.lock();
        inner.forgotten = inner.forgotten.max(at);
        Ok(())
    }
    async fn close(self: Box<Self>) -> Result<()> {
        self.source.note(&self.name, "says good-bye");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_cover_the_log_without_a_hole() {
        let mut at = 0;
        for _ in 0..1000 {
            let end = record_end(at);
            assert!(end > at && end - at < 2 * RECORD_MAX, "{at} to {end}");
            assert!((at..end).all(|inside| record_end(inside) == end));
            at = end;
        }
    }
}
