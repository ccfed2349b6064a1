//! One streaming connection: a task that reads, a task that reports, and the state they share with the
//! follower and the settler. Neither task ever waits for an upload.
//!
//! Invariants: the flush position reported is `min(settled, received)`, never falls on one connection and never
//! names log before `floor`, which the slot keeps no more;
//! an instant is vouched for only by an answer that the server gave after it.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use holdfast_core::{Bytes, Clock, Error, Instant, Result, Timestamp, task};
use holdfast_pgwire::{Event as Wire, Lsn as WireLsn, SqlState, Status, Stream, StreamReader, StreamWriter};
use tokio::sync::{Notify, mpsc};

use crate::{health::SharedHealth, wal::Lsn};

/// Received messages that wait for the follower: at most 128 KiB each.
const QUEUE: usize = 24;
/// Time between two pings while log flows, and while nothing happens.
const PING_BUSY: Duration = Duration::from_millis(50);
const PING_IDLE: Duration = Duration::from_millis(800);
/// Log flowed within this time: the source is busy.
const BUSY: Duration = Duration::from_millis(300);
/// From the answer of the first ping to the second ping of a probe.
const SECOND_PING: Duration = Duration::from_millis(10);
/// Reports without progress keep this distance, however often the server asks: one that shuts down asks
/// as fast as it is answered.
const SPACING: Duration = Duration::from_millis(50);
/// A server that says nothing for so long, though pinged, is gone.
const SILENCE: Duration = Duration::from_secs(20);
/// Probes whose log was not received yet; more are not remembered.
const VOUCHES: usize = 256;

/// What the follower gets, in order.
#[derive(Debug)]
pub enum Event {
    Wal {
        start: Lsn,
        bytes: Bytes,
    },
    /// Look at the shared state.
    Wake,
    TimelineEnd {
        next: u32,
        switch: Lsn,
    },
    /// The server no longer has the log asked for; the connection is over.
    Removed(Error),
    /// The connection is over.
    Over(Error),
}

/// An instant up to which all is in the stream, once the stream has reached `lsn`.
#[derive(Clone, Copy, Debug)]
pub struct Vouch {
    pub instant: Instant,
    /// The server's clock at its answer.
    pub time: Timestamp,
    pub lsn: Lsn,
}

/// A ping and what came of it. The answer to one tells the position that the server *sent* up to, which may
/// lie before what it holds; whatever it says after that answer lies behind what it held at the ping.
#[derive(Clone, Copy, Debug)]
enum Probe {
    None,
    Sent { at: Instant },
    Answered { at: Instant, time: Timestamp, again: Option<Instant> },
}

#[derive(Debug)]
struct Inner {
    received: Lsn,
    server_end: Lsn,
    settled: Lsn,
    acknowledged: Lsn,
    probe: Probe,
    /// Pings without an answer.
    outstanding: u32,
    vouches: VecDeque<Vouch>,
    last_wal: Instant,
    last_heard: Instant,
    last_report: Instant,
    /// The server asked for a report that it has not got yet.
    asked: bool,
    /// When the server began to ask for reports although it had sent everything: it shuts down.
    stopping: Option<Instant>,
    last_asked: Instant,
    /// The log received up to here must become durable soon.
    hurry: Option<Lsn>,
    /// The server counts on us for its commits.
    counted_on: bool,
    /// The stream is to be ended after one more report.
    leaving: bool,
    /// The reading task has ended, and with it the server's side.
    gone: bool,
    /// Why the connection is to be dropped.
    dropped: Option<String>,
}

/// Shared by the tasks, the follower and the settler.
#[derive(Debug)]
pub struct LinkState {
    pub timeline: u32,
    /// Where the stream began.
    pub start: Lsn,
    /// What is settled counts from here on: before it the slot keeps nothing, and a report of less would move
    /// the slot back to log that the server has removed or is to remove.
    floor: Lsn,
    clock: Clock,
    pace: Pace,
    inner: Mutex<Inner>,
    report: Notify,
    drop: Notify,
    left: Notify,
    health: SharedHealth,
}

/// How long this server may be kept waiting, and how often it wants to hear from us.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    pub shutdown_grace: Duration,
    /// The server's own `wal_sender_timeout`; `None` when it has no patience to lose.
    pub sender_timeout: Option<Duration>,
}

impl Pace {
    /// Often enough that only a server that shuts down has to ask (it does at half its patience).
    fn idle(&self) -> Duration {
        self.sender_timeout.map_or(PING_IDLE, |limit| PING_IDLE.min(limit / 5))
    }
}

/// The follower's end of a connection. Dropping it closes the connection.
pub struct Link {
    pub state: Arc<LinkState>,
    events: mpsc::Receiver<Event>,
    _tasks: [task::Task<()>; 2],
}

impl LinkState {
    fn new(
        timeline: u32,
        start: Lsn,
        settled: Lsn,
        floor: Lsn,
        pace: Pace,
        clock: &Clock,
        health: &SharedHealth,
    ) -> Self {
        let now = clock.now();
        Self {
            timeline,
            start,
            floor,
            clock: clock.clone(),
            pace,
            inner: Mutex::new(Inner {
                received: start,
                server_end: start,
                settled: if settled < floor { Lsn::INVALID } else { settled },
                acknowledged: Lsn::INVALID,
                probe: Probe::None,
                // The report that began the stream asked for an answer.
                outstanding: 1,
                vouches: VecDeque::new(),
                last_wal: now,
                last_heard: now,
                last_report: now,
                asked: true,
                stopping: None,
                last_asked: now,
                hurry: None,
                counted_on: false,
                leaving: false,
                gone: false,
                dropped: None,
            }),
            report: Notify::new(),
            drop: Notify::new(),
            left: Notify::new(),
            health: health.clone(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everything up to `lsn` (of this link's timeline) is durable.
    pub fn settle(&self, lsn: Lsn) {
        let mut inner = self.lock();
        if lsn > inner.settled && lsn >= self.floor {
            inner.settled = lsn;
            drop(inner);
            self.report.notify_one();
        }
    }

    /// Ends the connection without waiting for anything; the follower's next step says why.
    pub fn give_up(&self, why: impl Into<String>) {
        let mut inner = self.lock();
        inner.dropped.get_or_insert(why.into());
        drop(inner);
        self.drop.notify_waiters();
        self.report.notify_one();
    }

    /// Reports what is settled and ends the stream; log that still comes is thrown away. Returns when the server has
    /// heard it, or is gone.
    pub async fn leave(&self) {
        self.lock().leaving = true;
        self.drop.notify_waiters();
        self.report.notify_one();
        loop {
            let left = self.left.notified();
            if self.lock().gone {
                return;
            }
            left.await;
        }
    }

    /// The server said (by SQL) that it shuts down.
    pub fn stopping(&self) {
        let now = self.clock.now();
        let mut inner = self.lock();
        inner.last_asked = now;
        inner.stopping.get_or_insert(now);
    }

    pub fn set_counted_on(&self, counted_on: bool) {
        self.lock().counted_on = counted_on;
    }
    pub fn counted_on(&self) -> bool {
        self.lock().counted_on
    }

    /// The newest vouched instant of which all log lies before `received`.
    pub fn vouched(&self, received: Lsn) -> Option<Vouch> {
        let mut inner = self.lock();
        let mut newest = None;
        while let Some(vouch) = inner.vouches.pop_front_if(|vouch| vouch.lsn <= received) {
            newest = Some(vouch);
        }
        newest
    }

    /// Does a shutdown wait for the log before `received` to become durable? Asked once per request.
    pub fn hurried(&self, received: Lsn) -> bool {
        let mut inner = self.lock();
        let hurried = inner.hurry.is_some_and(|lsn| lsn <= received && inner.acknowledged < lsn);
        if hurried {
            inner.hurry = None;
        }
        hurried
    }

    fn on_wal(&self, start: Lsn, length: u64, server_end: Lsn) {
        let now = self.clock.now();
        let mut inner = self.lock();
        inner.last_heard = now;
        inner.last_wal = now;
        inner.received = start.saturating_add(length);
        inner.server_end = server_end.max(inner.received);
        if let Probe::Answered { at, time, .. } = inner.probe {
            let lsn = inner.server_end;
            inner.vouch(Vouch { instant: at, time, lsn });
        }
    }

    /// Returns whether the follower should look.
    fn on_keepalive(&self, server_end: Lsn, time: Timestamp, asked: bool) -> bool {
        let now = self.clock.now();
        let mut inner = self.lock();
        inner.last_heard = now;
        inner.server_end = inner.server_end.max(server_end);
        if asked {
            inner.asked = true;
            // We report often enough that only a server that shuts down has to ask.
            if server_end <= inner.received {
                inner.last_asked = now;
                inner.stopping.get_or_insert(now);
                inner.hurry = Some(inner.received);
            }
            drop(inner);
            self.report.notify_one();
            return true;
        }
        inner.outstanding = inner.outstanding.saturating_sub(1);
        let vouched = match inner.probe {
            Probe::Sent { at } if inner.outstanding == 0 => {
                inner.probe = Probe::Answered { at, time, again: None };
                false
            }
            Probe::Answered { at, time, again: Some(_) } if inner.outstanding == 0 => {
                let lsn = inner.server_end;
                inner.vouch(Vouch { instant: at, time, lsn });
                true
            }
            _ => false,
        };
        drop(inner);
        self.report.notify_one();
        vouched
    }

    /// The next report: what to say, whether to ask for an answer, and when to look again.
    fn next_report(&self) -> Report {
        let now = self.clock.now();
        let mut inner = self.lock();
        if inner.dropped.is_some() {
            return Report::Stop;
        }
        if let Some(since) = inner.stopping {
            let waiting = inner.acknowledged < inner.server_end;
            if now.saturating_duration_since(inner.last_asked) > Duration::from_secs(5) {
                inner.stopping = None;
            } else if waiting && now.saturating_duration_since(since) >= self.pace.shutdown_grace {
                inner.dropped = Some(format!(
                    "the server shuts down and its newest log ({} to {}) could not be made durable within shutdown_grace: \
                     the connection was dropped so that the shutdown can end; that log stays at the server",
                    inner.acknowledged, inner.server_end
                ));
                drop(inner);
                self.drop.notify_waiters();
                return Report::Stop;
            }
        }
        let flushed = inner.settled.min(inner.received).max(inner.acknowledged);
        if inner.leaving {
            inner.acknowledged = flushed;
            return Report::Last(status(inner.received, flushed));
        }
        let busy = now.saturating_duration_since(inner.last_wal) < BUSY || !inner.vouches.is_empty();
        let idle = self.pace.idle();
        let pace = if busy { PING_BUSY.min(idle) } else { idle };
        let ping_at = match inner.probe {
            Probe::None => Some(inner.last_report + pace),
            Probe::Answered { again: None, .. } => Some(inner.last_report + SECOND_PING),
            _ => None,
        };
        let ping = inner.outstanding == 0 && ping_at.is_some_and(|at| at <= now);
        let spaced = inner.last_report + SPACING <= now;
        // An answer that nobody has read yet must not silence us: the server hangs up on who says nothing.
        let due = inner.last_report + idle;
        if !ping && flushed <= inner.acknowledged && !(inner.asked && spaced) && due > now {
            let mut at = ping_at.filter(|_| inner.outstanding == 0).unwrap_or(due).min(due);
            if inner.asked {
                at = at.min(inner.last_report + SPACING);
            }
            return Report::Later(at.max(now + Duration::from_millis(1)));
        }
        if ping {
            inner.outstanding += 1;
            inner.probe = match inner.probe {
                Probe::Answered { at, time, .. } => Probe::Answered { at, time, again: Some(now) },
                _ => Probe::Sent { at: now },
            };
        }
        inner.acknowledged = flushed;
        inner.last_report = now;
        inner.asked = false;
        let status = status(inner.received, flushed);
        let (received, server_end) = (inner.received, inner.server_end);
        drop(inner);
        self.health.change(|health| {
            health.received = received;
            health.server_end = server_end;
            health.acknowledged = flushed;
        });
        Report::Send(status, ping)
    }
}

impl Inner {
    fn vouch(&mut self, vouch: Vouch) {
        self.probe = Probe::None;
        if self.vouches.len() >= VOUCHES {
            self.vouches.pop_back();
        }
        self.vouches.push_back(vouch);
    }
}

enum Report {
    Send(Status, bool),
    Later(Instant),
    /// This one, and the end of the stream.
    Last(Status),
    Stop,
}

fn status(received: Lsn, flushed: Lsn) -> Status {
    let wire = |lsn: Lsn| WireLsn(lsn.0);
    // Commits that wait for `remote_write` must not be told that log is safe which is in memory only.
    let written = if flushed == Lsn::INVALID { received } else { flushed };
    Status { written: wire(written), flushed: wire(flushed), applied: wire(flushed) }
}

impl Link {
    /// Runs `stream`, which begins at `start`; `settled` is durable already (0/0 when nothing is), and counts from
    /// `floor` on.
    #[expect(clippy::too_many_arguments, reason = "all of them are what one stream is")]
    pub fn run(
        stream: Stream,
        timeline: u32,
        start: Lsn,
        settled: Lsn,
        floor: Lsn,
        pace: Pace,
        clock: &Clock,
        health: &SharedHealth,
    ) -> Self {
        let state = Arc::new(LinkState::new(timeline, start, settled, floor, pace, clock, health));
        let (sender, events) = mpsc::channel(QUEUE);
        let (reader, writer) = stream.split();
        let reading = task::spawn(read(reader, state.clone(), sender));
        let reporting = task::spawn(report(writer, state.clone()));
        Self { state, events, _tasks: [reading, reporting] }
    }

    /// The next event. Cancel-safe.
    pub async fn next(&mut self) -> Event {
        let over = || Event::Over(Error::retry("the connection to the server is over"));
        self.events.recv().await.unwrap_or_else(over)
    }
}

async fn read(mut reader: StreamReader, state: Arc<LinkState>, events: mpsc::Sender<Event>) {
    let last = loop {
        let dropped = state.drop.notified();
        if let Some(why) = state.lock().dropped.clone() {
            break Event::Over(Error::retry(why));
        }
        let heard = tokio::select! {
            biased;
            heard = state.clock.timeout(SILENCE, reader.next()) => heard,
            () = dropped => continue,
        };
        let wire = match heard {
            Some(Ok(wire)) => wire,
            Some(Err(cause)) if cause.code() == Some(SqlState::UNDEFINED_FILE) => {
                break Event::Removed(cause.into());
            }
            Some(Err(cause)) => break Event::Over(cause.into()),
            None => {
                break Event::Over(Error::retry("the server answers no pings; the connection is begun anew"));
            }
        };
        match wire {
            Wire::Wal { start, server_end, bytes, .. } => {
                let start = Lsn(start.0);
                state.on_wal(start, bytes.len() as u64, Lsn(server_end.0));
                if deliver(&events, &state, Event::Wal { start, bytes }).await.is_err() {
                    return;
                }
            }
            Wire::Keepalive { server_end, sent_at, reply_requested } => {
                if state.on_keepalive(Lsn(server_end.0), sent_at, reply_requested) {
                    // A full queue means that the follower is about to look anyway.
                    drop(events.try_send(Event::Wake));
                }
            }
            Wire::EndOfTimeline { next_timeline, switch_at } => {
                break Event::TimelineEnd { next: next_timeline, switch: Lsn(switch_at.0) };
            }
            Wire::Ended { .. } => {
                break Event::Over(Error::retry(
                    "the server shut down; all its log was received and acknowledged",
                ));
            }
        }
    };
    drop(reader);
    state.lock().gone = true;
    state.left.notify_waiters();
    drop(events.send(last).await);
}

/// Waits for room in the queue, unless nobody will look at it any more.
async fn deliver(events: &mpsc::Sender<Event>, state: &LinkState, event: Event) -> Result<(), ()> {
    let dropped = state.drop.notified();
    tokio::pin!(dropped);
    dropped.as_mut().enable();
    {
        let inner = state.lock();
        if inner.leaving || inner.dropped.is_some() {
            return Ok(());
        }
    }
    tokio::select! {
        biased;
        sent = events.send(event) => sent.map_err(drop),
        () = dropped => Ok(()),
    }
}

async fn report(mut writer: StreamWriter, state: Arc<LinkState>) {
    loop {
        match state.next_report() {
            Report::Stop => return,
            Report::Last(status) => {
                if writer.status(status, false).await.is_ok() {
                    drop(writer.stop().await);
                }
                return;
            }
            Report::Send(status, ping) => {
                let dropped = state.drop.notified();
                let sent = tokio::select! {
                    biased;
                    sent = writer.status(status, ping) => sent,
                    () = dropped => continue,
                };
                // The reading task meets the same end and says so.
                if sent.is_err() {
                    return;
                }
            }
            Report::Later(at) => {
                tokio::select! {
                    biased;
                    () = state.report.notified() => {}
                    () = state.clock.sleep_until(at) => {}
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(settled: u64, floor: u64) -> LinkState {
        let pace = Pace { shutdown_grace: Duration::from_secs(3), sender_timeout: None };
        let (clock, health) = (Clock::system(), SharedHealth::default());
        LinkState::new(1, Lsn(100), Lsn(settled), Lsn(floor), pace, &clock, &health)
    }

    fn sent(link: &LinkState) -> Option<(Status, bool)> {
        match link.next_report() {
            Report::Send(status, ping) => Some((status, ping)),
            _ => None,
        }
    }

    /// Or the new slot would move back to log that is gone.
    #[tokio::test(start_paused = true)]
    async fn what_was_settled_before_a_gap_is_not_reported_behind_it() {
        let link = link(50, 100);
        link.on_wal(Lsn(100), 100, Lsn(200));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(sent(&link).unwrap().0.flushed, WireLsn(0));
        link.settle(Lsn(70));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(sent(&link).unwrap().0.flushed, WireLsn(0));
        link.settle(Lsn(150));
        let status = sent(&link).unwrap().0;
        assert_eq!((status.flushed, status.applied), (WireLsn(150), WireLsn(150)));
        // Commits that wait for remote_write wait for durable log too.
        assert_eq!(status.written, WireLsn(150));
    }

    /// The first answer is never read here, so no ping is due.
    #[tokio::test(start_paused = true)]
    async fn reports_go_on_while_an_answer_is_outstanding() {
        let link = link(0, 0);
        tokio::time::advance(PING_IDLE).await;
        assert!(sent(&link).is_some(), "the report that the server asked for");
        for _ in 0..3 {
            assert!(sent(&link).is_none());
            tokio::time::advance(PING_IDLE).await;
            let (_, ping) = sent(&link).expect("silent while an answer is outstanding");
            assert!(!ping);
        }
    }
}
