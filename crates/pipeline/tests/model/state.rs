//! What the store holds, what each writer knows, and what a reader sees.

/// Data objects per writer at most; numbers 0 to DATA, and one more for an END.
pub const DATA: usize = 3;
pub const SLOTS: usize = DATA + 2;
pub const WRITERS: usize = 3;
/// No create begins so far above the lowest one without an answer.
pub const WINDOW: usize = 2;

/// A rule that is switched off.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Broken {
    R6Check,
    ClaimFirst,
    End,
    EndStays,
    LowestHole,
    NewestPredecessor,
    OnePredecessor,
    CountOnce,
    R7List,
    ReadFromZero,
    ReadToEnd,
    Gapless,
    ZeroStays,
    NumberIsName,
    Window,
    StepOver,
}

#[derive(Clone, Debug)]
pub struct Rules {
    pub create_only: bool,
    /// How many data objects each writer has to write.
    pub data: Vec<u8>,
    /// The store may lose one object that it held.
    pub loses: bool,
    pub broken: Option<Broken>,
}

impl Rules {
    pub fn create_only(data: &[u8]) -> Self {
        Self { create_only: true, data: data.to_vec(), loses: false, broken: None }
    }
    pub fn plain(data: &[u8]) -> Self {
        Self { create_only: false, data: data.to_vec(), loses: false, broken: None }
    }
    pub fn losing(mut self) -> Self {
        self.loses = true;
        self
    }
    pub fn without(mut self, broken: Broken) -> Self {
        self.broken = Some(broken);
        self
    }
    pub fn is_off(&self, rule: Broken) -> bool {
        self.broken == Some(rule)
    }
    /// Epoch numbers may be equal: the writer's id is part of the name.
    pub fn names_carry_writer(&self) -> bool {
        !self.create_only || self.is_off(Broken::NumberIsName)
    }
    pub fn name(&self) -> String {
        let store = if self.create_only { "create-only" } else { "without create-only" };
        let loses = if self.loses { ", an object is lost" } else { "" };
        match self.broken {
            None => format!("{store} {:?}{loses}", self.data),
            Some(rule) => format!("{store} {:?}{loses}, {rule:?} off", self.data),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Slot {
    #[default]
    Free,
    Data,
    /// END of writer `0`.
    End(u8),
}

/// Where a writer stands. Everything before `Stream` is the claim.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum At {
    #[default]
    Idle,
    Claiming,
    Survey,
    /// Looks for a number 0, from the highest seen epoch down.
    Probe,
    ListMerged,
    ListLog,
    /// END at (`target`, `n`) is in flight.
    Ending,
    Closed,
    ZeroSent,
    Stream,
    /// Fenced, or gave way.
    Out,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Merge {
    #[default]
    Not,
    Sent(u8),
    Stored(u8),
    Removing(u8),
    Done,
}

/// How much of each writer's epoch was taken over, plus one; 0 when it was not.
pub type Taken = [u8; WRITERS];

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Writer {
    pub at: At,
    /// The epoch number it wants or has.
    pub epoch: u8,
    /// Bit w: writer w's epoch is lower than ours and was listed.
    pub seen: u8,
    /// The epoch that is being probed, closed or counted.
    pub target: u8,
    pub n: u8,
    pub merged_end: u8,
    pub taken: Taken,
    /// Bit n: data n was sent / is known to be durable / a copy may still land.
    pub sent: u8,
    pub done: u8,
    pub ghost: u8,
    /// Settle decided (R7 list came back empty) / told to the source.
    pub cleared: u8,
    pub settled: u8,
    pub merge: Merge,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct State {
    pub writers: [Writer; WRITERS],
    /// Epoch objects: the number that writer w holds; 0 when none.
    pub claimed: [u8; WRITERS],
    /// Log objects by the epoch's writer.
    pub log: [[Slot; SLOTS]; WRITERS],
    /// What number 0 of that epoch says it took over.
    pub zero: [Taken; WRITERS],
    /// End of the merged object (it begins at 1); 0 when none.
    pub merged: [u8; WRITERS],
    /// Bit n: the store held number n of that epoch and lost it.
    pub lost: [u8; WRITERS],
}

impl State {
    /// Order of epochs.
    pub fn rank(&self, w: usize) -> u16 {
        u16::from(self.writers[w].epoch) * 8 + w as u16
    }
    pub fn exists_above(&self, w: usize) -> bool {
        (0..WRITERS).any(|o| o != w && self.claimed[o] > 0 && self.rank(o) > self.rank(w))
    }
    pub fn has_zero(&self, w: usize) -> bool {
        self.log[w][0] == Slot::Data
    }
    /// Is number `n` of w's epoch there for a reader?
    fn readable(&self, w: usize, n: usize) -> bool {
        n <= usize::from(self.merged[w]) || self.log[w][n] == Slot::Data
    }
    /// The lowest number of w's epoch, from `from` on, that nobody wrote and that may still land: a number so far
    /// below one that is there had its answer before that one was begun.
    pub fn end(&self, w: usize, from: usize, steps_over: bool) -> u8 {
        let newest = (from..SLOTS).rev().find(|&n| self.log[w][n] != Slot::Free).unwrap_or(0);
        let proven = |n: usize| newest >= n + WINDOW && steps_over;
        let taken = |&n: &usize| self.log[w][n] == Slot::Data || self.log[w][n] == Slot::Free && proven(n);
        (from + (from..SLOTS).take_while(taken).count()) as u8
    }
    /// The last number that is there below `end`.
    pub fn last(&self, w: usize, end: u8) -> u8 {
        (1..end).rev().find(|&n| self.readable(w, n.into())).unwrap_or(0)
    }
    /// The last number of w's epoch that counts, as it stands now.
    pub fn count(&self, w: usize) -> u8 {
        self.last(w, self.end(w, usize::from(self.merged[w]) + 1, true))
    }

    /// A number that was taken over is there, or is a hole that readers step over.
    fn known(&self, w: usize, n: u8, rules: &Rules) -> bool {
        rules.loses || self.readable(w, n.into())
    }
    fn is_lost(&self, w: usize, n: u8) -> bool {
        self.lost[w] & (1 << n) != 0
    }

    /// R5: the objects that exist for a reader, as (writer, number), in order.
    pub fn view(&self, rules: &Rules) -> Vec<(usize, u8)> {
        let from_zero = !rules.is_off(Broken::ReadFromZero);
        let top = (0..WRITERS)
            .filter(|&w| self.claimed[w] > 0 && (!from_zero || self.has_zero(w)))
            .max_by_key(|&w| self.rank(w));
        let Some(top) = top else { return Vec::new() };
        let mut view = Vec::new();
        let mut below: Vec<usize> = (0..WRITERS).filter(|&w| self.zero[top][w] > 0).collect();
        below.sort_by_key(|&w| self.rank(w));
        for w in below {
            let named = self.zero[top][w] - 1;
            let last = if rules.is_off(Broken::ReadToEnd) { self.count(w) } else { named };
            view.extend((1..=last).filter(|&n| self.known(w, n, rules)).map(|n| (w, n)));
        }
        if self.has_zero(top) {
            view.extend((1..=self.count(top)).map(|n| (top, n)));
        }
        view
    }

    /// Position in the source before number 1 of w: what its number 0 took over.
    fn base(&self, w: usize) -> u8 {
        self.zero[w].iter().map(|t| t.saturating_sub(1)).sum()
    }

    /// `None` when both invariants hold.
    pub fn fault(&self, rules: &Rules) -> Option<String> {
        let view = self.view(rules);
        for (w, writer) in self.writers.iter().enumerate() {
            for n in 1..=writer.settled {
                if !view.contains(&(w, n)) && !self.is_lost(w, n) {
                    return Some(format!("w{w} settled {n}, but readers see {view:?}"));
                }
            }
        }
        for (at, &(w, n)) in view.iter().enumerate() {
            if usize::from(self.base(w) + n) != at + 1 {
                return Some(format!("the chain skips or doubles an item: {view:?}"));
            }
            if !self.readable(w, n.into()) && !self.is_lost(w, n) {
                return Some(format!("w{w} {n} is taken for lost and was never there: {view:?}"));
            }
        }
        None
    }
}
