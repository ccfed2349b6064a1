//! A store for simulations that does everything a real one may do to a writer: answers late or not at all,
//! carries a request out long after its sender died, or twice, fails, throttles. Deterministic under paused time and
//! a seeded random.
//!
//! What it keeps of the contract: a create is atomic, a create-only store refuses a taken name, and what has
//! landed is shown by every later read and list.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use holdfast_core::{
    Clock, Error, Instant, Random, Result, Sink, Timestamp, digest,
    sink::{Body, Capabilities, Created, Entry, Page, Range, StoreClock, check_name},
};

/// The store's clock runs so far ahead of ours.
pub const AHEAD: Duration = Duration::from_secs(7);

/// How cruel; chances are in thousandths.
#[derive(Clone, Copy, Debug)]
pub struct Cruelty {
    /// Usual time of a request, at most.
    pub latency: Duration,
    /// The request is carried out, the answer is lost.
    pub lost_answer: u64,
    /// The request is not carried out: reset, 5xx, throttling.
    pub refused: u64,
    /// The caller gets an error; the request is carried out much later.
    pub late: u64,
    /// So much later, at most.
    pub late_by: Duration,
    /// An answered create lands once more, much later.
    pub copy: u64,
    /// Removal is not allowed to writers.
    pub no_removal: bool,
}

impl Cruelty {
    pub const NONE: Self = Self {
        latency: Duration::from_millis(20),
        lost_answer: 0,
        refused: 0,
        late: 0,
        late_by: Duration::ZERO,
        copy: 0,
        no_removal: false,
    };
}

/// Cloning shares the store and the way to it; [`CruelSink::another_way`] shares the store alone.
#[derive(Clone)]
pub struct CruelSink {
    create_only: bool,
    clock: Clock,
    random: Random,
    state: Arc<Mutex<State>>,
    cut_off: Arc<AtomicBool>,
    /// What answers along this way said of the store's clock.
    told: Arc<StoreClock>,
}

struct State {
    cruelty: Cruelty,
    objects: BTreeMap<String, (Bytes, Timestamp)>,
    /// What will land, by when, then by the order in which it was sent.
    pending: BTreeMap<(Instant, u64), Landing>,
    results: BTreeMap<u64, Created>,
    next: u64,
    /// Creates of names that contain one of these are carried out when they are let go of.
    holds: Vec<String>,
    held: Vec<(u64, Landing)>,
    /// Until then every request fails.
    down_until: Option<Instant>,
    trace: Vec<String>,
    /// Names that were put twice with different bytes on a store that does not refuse it.
    overwritten: BTreeSet<String>,
}

enum Landing {
    Create { name: String, bytes: Bytes },
    Remove { names: Vec<String> },
}

enum Fate {
    Answered,
    LostAnswer,
    Refused,
    Late,
}

impl CruelSink {
    pub fn new(create_only: bool, cruelty: Cruelty, clock: Clock, random: Random) -> Self {
        let state = State {
            cruelty,
            objects: BTreeMap::new(),
            pending: BTreeMap::new(),
            results: BTreeMap::new(),
            next: 0,
            holds: Vec::new(),
            held: Vec::new(),
            down_until: None,
            trace: Vec::new(),
            overwritten: BTreeSet::new(),
        };
        let state = Arc::new(Mutex::new(state));
        Self { create_only, clock, random, state, cut_off: Arc::default(), told: Arc::default() }
    }
    /// The same store for another writer, which can be cut off by itself.
    pub fn another_way(&self) -> Self {
        Self { cut_off: Arc::default(), told: Arc::default(), ..self.clone() }
    }
    /// Requests along this way fail from now on, or no longer.
    pub fn cut_off(&self, cut_off: bool) {
        self.cut_off.store(cut_off, Relaxed);
    }
    /// Creates of names that contain `part` get no answer and do not land, until [`Self::let_go`].
    pub fn hold(&self, part: impl Into<String>) {
        self.lock().holds.push(part.into());
    }
    /// From here on creates are carried out again; those that are held stay so.
    pub fn hold_no_more(&self) {
        self.lock().holds.clear();
    }
    /// What was held lands now, in the order in which it was sent.
    pub fn let_go(&self) {
        let wall = self.clock.wall();
        let mut state = self.lock();
        state.holds.clear();
        for (id, landing) in std::mem::take(&mut state.held) {
            state.land(id, landing, self.create_only, wall);
        }
    }
    /// How many creates are held.
    pub fn held(&self) -> usize {
        self.lock().held.len()
    }

    pub fn set_cruelty(&self, cruelty: Cruelty) {
        self.lock().cruelty = cruelty;
    }
    /// Every request fails for so long from now on.
    pub fn go_down(&self, duration: Duration) {
        let until = self.clock.now() + duration;
        self.lock().down_until = Some(until);
    }
    /// Lets everything land that ever will.
    pub fn calm(&self) {
        let mut state = self.lock();
        state.cruelty = Cruelty::NONE;
        state.down_until = None;
        let pending = std::mem::take(&mut state.pending);
        for ((_, id), landing) in pending {
            state.land(id, landing, self.create_only, self.clock.wall());
        }
        drop(state);
        self.let_go();
    }
    /// Digest of all objects and of all that was asked, in order.
    pub fn digest(&self) -> [u8; 32] {
        let state = self.lock();
        let mut all = state.trace.join("\n").into_bytes();
        for (name, (bytes, _)) in &state.objects {
            all.extend_from_slice(name.as_bytes());
            all.extend_from_slice(&digest(bytes));
        }
        digest(&all)
    }
    pub fn trace(&self) -> Vec<String> {
        self.lock().trace.clone()
    }
    pub fn names(&self) -> Vec<String> {
        self.lock().objects.keys().cloned().collect()
    }
    pub fn get(&self, name: &str) -> Option<Bytes> {
        self.lock().objects.get(name).map(|(bytes, _)| bytes.clone())
    }
    /// Puts an object whatever stands there.
    pub fn tamper(&self, name: &str, bytes: Bytes) {
        let wall = self.clock.wall();
        self.lock().objects.insert(name.to_owned(), (bytes, wall));
    }
    /// Must stay empty: a number is sealed once.
    pub fn overwritten(&self) -> Vec<String> {
        self.lock().overwritten.iter().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// The state as of now: what was to land has landed.
    fn now(&self) -> MutexGuard<'_, State> {
        let (now, wall) = (self.clock.now(), self.clock.wall());
        let mut state = self.lock();
        while let Some(entry) = state.pending.first_entry().filter(|entry| entry.key().0 <= now) {
            let ((_, id), landing) = entry.remove_entry();
            state.land(id, landing, self.create_only, wall);
        }
        state
    }

    fn fate(&self, cruelty: &Cruelty) -> Fate {
        let dice = self.random.below(1000);
        if dice < cruelty.lost_answer {
            Fate::LostAnswer
        } else if dice < cruelty.lost_answer + cruelty.refused {
            Fate::Refused
        } else if dice < cruelty.lost_answer + cruelty.refused + cruelty.late {
            Fate::Late
        } else {
            Fate::Answered
        }
    }
    fn up_to(&self, most: Duration) -> Duration {
        let micros = u64::try_from(most.as_micros()).unwrap_or(u64::MAX);
        Duration::from_micros(self.random.below(micros.saturating_add(1)))
    }
    fn is_down(&self) -> bool {
        let now = self.clock.now();
        self.cut_off.load(Relaxed) || self.lock().down_until.is_some_and(|until| now < until)
    }
    fn tell(&self) {
        self.told.saw(self.clock.now(), self.clock.wall().plus(AHEAD));
    }
    fn note(&self, line: String) {
        let at = self.clock.wall();
        self.lock().trace.push(format!("{} {line}", at.micros()));
    }

    /// Sends something that changes the store: it lands on its own, whether or not the caller still waits.
    async fn send(&self, landing: impl Fn() -> Landing, line: String) -> Result<Created> {
        let cruelty = self.lock().cruelty;
        let fate = if self.is_down() { Fate::Refused } else { self.fate(&cruelty) };
        let lands = match fate {
            Fate::Refused => None,
            Fate::Late => Some(self.up_to(cruelty.late_by)),
            Fate::Answered | Fate::LostAnswer => Some(self.up_to(cruelty.latency)),
        };
        let id = {
            let mut state = self.lock();
            state.next += 1;
            let id = state.next;
            if lands.is_some() && state.is_held(&landing()) {
                state.held.push((id, landing()));
            } else if let Some(after) = lands {
                let at = self.clock.now() + after;
                state.pending.insert((at, id), landing());
            }
            id
        };
        let held = self.lock().held.iter().any(|(held, _)| *held == id);
        if held {
            return self.wait_for_held(id, line).await;
        }
        let copied = lands.is_some() && self.random.below(1000) < cruelty.copy;
        if copied {
            let after = self.up_to(cruelty.late_by);
            let mut state = self.lock();
            state.next += 1;
            let copy = state.next;
            state.pending.insert((self.clock.now() + after, copy), landing());
        }
        let answer = self.up_to(cruelty.latency);
        let wait = match fate {
            Fate::Answered | Fate::LostAnswer => lands.unwrap_or_default() + answer,
            Fate::Refused | Fate::Late => answer,
        };
        self.clock.sleep(wait).await;
        let result = self.now().results.remove(&id);
        let (text, result) = match (fate, result) {
            (Fate::Answered, Some(created)) => {
                self.tell();
                (format!("{created:?}"), Ok(created))
            }
            (Fate::Answered, None) => {
                ("nothing".to_owned(), Err(Error::bug("a simulated request got no answer")))
            }
            (Fate::LostAnswer, _) => ("answer lost".to_owned(), Err(Error::retry("the answer was lost"))),
            (Fate::Late, _) => ("late".to_owned(), Err(Error::retry("the request timed out"))),
            (Fate::Refused, _) if id % 2 == 0 => ("503".to_owned(), Err(Error::slow_down("503 SlowDown"))),
            (Fate::Refused, _) => ("500".to_owned(), Err(Error::retry("500 Internal Error"))),
        };
        self.note(format!("{line}: {text}"));
        result
    }

    /// A held request: answered when it was let go of, or not at all.
    async fn wait_for_held(&self, id: u64, line: String) -> Result<Created> {
        for _ in 0..2000 {
            self.clock.sleep(Duration::from_millis(5)).await;
            let answer = self.lock().results.remove(&id);
            if let Some(created) = answer {
                self.note(format!("{line}: {created:?} after it was held"));
                return Ok(created);
            }
        }
        self.note(format!("{line}: held"));
        Err(Error::retry("the request timed out"))
    }

    /// Waits as a reading request does; its answer is the store at some moment within.
    async fn ask<T>(&self, line: &str, answer: impl FnOnce(&mut State) -> T) -> Result<T> {
        let cruelty = self.lock().cruelty;
        let fate = if self.is_down() { Fate::Refused } else { self.fate(&cruelty) };
        self.clock.sleep(self.up_to(cruelty.latency)).await;
        let read = answer(&mut self.now());
        self.clock.sleep(self.up_to(cruelty.latency)).await;
        match fate {
            Fate::Answered => {
                self.tell();
                self.note(line.to_owned());
                Ok(read)
            }
            _ => {
                self.note(format!("{line}: failed"));
                Err(Error::retry("the connection was reset"))
            }
        }
    }
}

impl State {
    fn is_held(&self, landing: &Landing) -> bool {
        match landing {
            Landing::Create { name, .. } => self.holds.iter().any(|part| name.contains(part.as_str())),
            Landing::Remove { .. } => false,
        }
    }

    fn land(&mut self, id: u64, landing: Landing, create_only: bool, wall: Timestamp) {
        match landing {
            Landing::Create { name, bytes } => {
                let taken = self.objects.get(&name);
                let result = if taken.is_some() && create_only { Created::Exists } else { Created::New };
                if result == Created::New {
                    if taken.is_some_and(|(old, _)| *old != bytes) {
                        self.overwritten.insert(name.clone());
                    }
                    self.objects.insert(name, (bytes, wall));
                }
                self.results.insert(id, result);
            }
            Landing::Remove { names } => {
                for name in names {
                    self.objects.remove(&name);
                }
                self.results.insert(id, Created::New);
            }
        }
    }
}

#[async_trait]
impl Sink for CruelSink {
    async fn capabilities(&self) -> Result<Capabilities> {
        Ok(Capabilities { create_only: self.create_only, history: "kept in memory only".to_owned() })
    }

    async fn create(&self, name: &str, body: Body) -> Result<Created> {
        check_name(name)?;
        let bytes = body.concat();
        let landing = || Landing::Create { name: name.to_owned(), bytes: bytes.clone() };
        self.send(landing, format!("create {name}")).await
    }

    async fn read(&self, name: &str, range: Range) -> Result<Option<Bytes>> {
        check_name(name)?;
        self.ask(&format!("read {name}"), |state| {
            state.objects.get(name).map(|(bytes, _)| match range {
                Range::All => bytes.clone(),
                Range::Part { from, length } => {
                    let end = bytes.len() as u64;
                    let from = from.min(end);
                    bytes.slice(from as usize..from.saturating_add(length).min(end) as usize)
                }
            })
        })
        .await
    }

    async fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Page> {
        self.ask(&format!("list {prefix}"), |state| {
            let mut page = Page::default();
            let from = after.unwrap_or(prefix).max(prefix).to_owned();
            for (name, (bytes, modified)) in state.objects.range(from..) {
                if !name.starts_with(prefix) {
                    break;
                }
                if after.is_some_and(|after| name.as_str() <= after) {
                    continue;
                }
                if page.entries.len() == limit {
                    page.more = true;
                    break;
                }
                page.entries.push(Entry {
                    name: name.clone(),
                    size: bytes.len() as u64,
                    modified: *modified,
                });
            }
            page
        })
        .await
    }

    async fn remove(&self, names: &[String]) -> Result<()> {
        if self.lock().cruelty.no_removal {
            return Err(Error::configure("403: this writer may not remove"));
        }
        let landing = || Landing::Remove { names: names.to_vec() };
        self.send(landing, format!("remove {} objects", names.len())).await.map(|_| ())
    }

    fn address(&self) -> String {
        "cruel memory".to_owned()
    }

    fn clock(&self) -> Option<(Instant, Timestamp)> {
        self.told.read()
    }
}
