//! Every step that can be taken from a state.

use std::fmt;

use crate::state::{At, Broken, Merge, Rules, SLOTS, Slot, State, WINDOW, WRITERS};

/// One line of a counterexample.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    Start,
    By { w: u8, what: &'static str, target: u8, n: u8 },
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Start => write!(f, "start"),
            Self::By { w, what, target, n } => write!(f, "w{w} {what} (epoch of w{target}, {n})"),
        }
    }
}

pub fn successors(state: &State, rules: &Rules, out: &mut Vec<(Step, State)>) {
    for w in 0..rules.data.len() {
        let mut moves = Moves { w, state, rules, out };
        match state.writers[w].at {
            At::Idle => moves.list_epochs(),
            At::Claiming => moves.claim_lands(),
            At::Survey => moves.survey(),
            At::Probe => moves.probe(),
            At::ListMerged => moves.list_merged(),
            At::ListLog => moves.list_log(),
            At::Ending => moves.end_lands(),
            At::Closed => moves.send_zero(),
            At::ZeroSent => moves.zero_lands(),
            At::Stream => moves.stream(),
            At::Out => {}
        }
        moves.data_lands();
        moves.copy_lands();
        if rules.loses {
            moves.is_lost();
        }
    }
}

struct Moves<'a> {
    w: usize,
    state: &'a State,
    rules: &'a Rules,
    out: &'a mut Vec<(Step, State)>,
}

impl Moves<'_> {
    fn take(&mut self, what: &'static str, target: usize, n: u8, change: impl FnOnce(&mut State)) {
        let mut after = self.state.clone();
        change(&mut after);
        let step = Step::By { w: self.w as u8, what, target: target as u8, n };
        self.out.push((step, after));
    }
    /// A fenced writer keeps only what may still land.
    fn leave(after: &mut State, w: usize) {
        let writer = &mut after.writers[w];
        writer.at = At::Out;
        writer.seen = 0;
        writer.target = 0;
        writer.n = 0;
        writer.merged_end = 0;
        writer.merge = Merge::Not;
    }

    fn list_epochs(&mut self) {
        let w = self.w;
        let highest = self.state.claimed.iter().copied().max().unwrap_or(0);
        let first = if self.rules.is_off(Broken::ClaimFirst) { At::Survey } else { At::Claiming };
        self.take("lists epochs and wants", w, highest + 1, |s| {
            s.writers[w].epoch = highest + 1;
            s.writers[w].at = first;
        });
    }

    /// The epoch object is in flight; a lost answer leaves it there, to be sent again.
    fn claim_lands(&mut self) {
        let w = self.w;
        let epoch = self.state.writers[w].epoch;
        let taken = (0..WRITERS).any(|o| o != w && self.state.claimed[o] == epoch);
        if taken && !self.rules.names_carry_writer() {
            self.take("finds its epoch taken", w, epoch, |s| s.writers[w] = Default::default());
            return;
        }
        let next = if self.rules.is_off(Broken::ClaimFirst) { At::Closed } else { At::Survey };
        self.take("has its epoch", w, epoch, |s| {
            s.claimed[w] = epoch;
            s.writers[w].at = next;
        });
        if self.state.claimed[w] == 0 {
            self.take("has its epoch, answer lost", w, epoch, |s| s.claimed[w] = epoch);
        }
    }

    fn survey(&mut self) {
        let w = self.w;
        let mut seen = 0;
        for o in 0..WRITERS {
            if o != w && self.state.claimed[o] > 0 && self.state.rank(o) < self.state.rank(w) {
                seen |= 1 << o;
            }
        }
        let first = if self.rules.is_off(Broken::ClaimFirst) { At::Claiming } else { At::Closed };
        self.take("lists lower epochs", w, seen, |s| {
            s.writers[w].seen = seen;
            match Self::highest(s, seen) {
                Some(o) => {
                    s.writers[w].target = o as u8;
                    s.writers[w].at = At::Probe;
                }
                None => s.writers[w].at = first,
            }
        });
    }

    fn highest(state: &State, mask: u8) -> Option<usize> {
        (0..WRITERS).filter(|o| mask & (1 << o) != 0).max_by_key(|&o| state.rank(o))
    }
    /// The next seen epoch above / below `than`.
    fn next_above(state: &State, mask: u8, than: Option<usize>) -> Option<usize> {
        (0..WRITERS)
            .filter(|&o| mask & (1 << o) != 0 && than.is_none_or(|t| state.rank(o) > state.rank(t)))
            .min_by_key(|&o| state.rank(o))
    }
    fn next_below(state: &State, mask: u8, than: usize) -> Option<usize> {
        (0..WRITERS)
            .filter(|&o| mask & (1 << o) != 0 && state.rank(o) < state.rank(than))
            .max_by_key(|&o| state.rank(o))
    }

    fn probe(&mut self) {
        let w = self.w;
        let me = self.state.writers[w];
        let target = usize::from(me.target);
        if self.state.has_zero(target) {
            self.take("finds a number 0", target, 0, |s| s.writers[w].at = At::ListMerged);
            return;
        }
        let rules = self.rules;
        self.take("finds no number 0", target, 0, |s| match Self::next_below(s, me.seen, target) {
            Some(o) => s.writers[w].target = o as u8,
            None => Self::close_next(s, w, None, rules),
        });
    }

    fn list_merged(&mut self) {
        let w = self.w;
        let target = usize::from(self.state.writers[w].target);
        let end = self.state.merged[target];
        self.take("lists merged", target, end, |s| {
            s.writers[w].merged_end = end;
            s.writers[w].at = At::ListLog;
        });
    }

    fn list_log(&mut self) {
        let (w, rules) = (self.w, self.rules);
        let me = self.state.writers[w];
        let target = usize::from(me.target);
        let free = |n: &usize| self.state.log[target][*n] == Slot::Free;
        let from = usize::from(me.merged_end) + 1;
        let lowest = self.state.end(target, from, !rules.is_off(Broken::StepOver)).min(SLOTS as u8 - 1);
        let above_all = (from..SLOTS).rev().take_while(free).last().unwrap_or(SLOTS - 1) as u8;
        let n = if rules.is_off(Broken::LowestHole) { above_all } else { lowest };
        if rules.create_only && !rules.is_off(Broken::End) {
            // An END of an earlier claimant is met by the create itself.
            let n = match self.state.log[target].iter().position(|slot| matches!(slot, Slot::End(_))) {
                Some(at) if at >= from => (at as u8).min(n),
                _ => n,
            };
            self.take("sends END", target, n, |s| {
                s.writers[w].n = n;
                s.writers[w].at = At::Ending;
            });
        } else {
            self.take("counts up to", target, n - 1, |s| Self::closed(s, w, target, n, rules));
        }
    }

    fn end_lands(&mut self) {
        let (w, rules) = (self.w, self.rules);
        let me = self.state.writers[w];
        let (target, n) = (usize::from(me.target), me.n);
        match self.state.log[target][usize::from(n)] {
            Slot::Free => {
                self.take("has END", target, n, |s| {
                    s.log[target][usize::from(n)] = Slot::End(w as u8);
                    Self::closed(s, w, target, n, rules);
                });
                self.take("has END, answer lost", target, n, |s| {
                    s.log[target][usize::from(n)] = Slot::End(w as u8);
                });
            }
            Slot::Data if n == 0 && rules.is_off(Broken::NewestPredecessor) => {
                self.take("finds a number 0 and passes over it", target, n, |s| {
                    Self::close_next(s, w, Some(target), rules);
                });
            }
            Slot::Data if n == 0 => {
                self.take("finds a number 0 while closing", target, n, |s| {
                    s.writers[w].at = At::ListMerged;
                });
            }
            Slot::Data => {
                self.take("finds data where END should go", target, n, |s| {
                    s.writers[w].n = (n + 1).min(SLOTS as u8 - 1);
                });
            }
            Slot::End(by) if usize::from(by) != w && self.state.rank(by.into()) > self.state.rank(w) => {
                self.take("finds END of a higher epoch: fenced", target, n, |s| Self::leave(s, w));
            }
            Slot::End(_) => {
                self.take("finds END of a lower epoch", target, n, |s| {
                    Self::closed(s, w, target, n, rules);
                });
            }
        }
    }

    /// The epoch of `target` ends before `n`: takes it over if it has a number 0, then goes up.
    fn closed(s: &mut State, w: usize, target: usize, n: u8, rules: &Rules) {
        if n > 0 {
            let adds = rules.is_off(Broken::OnePredecessor) && s.writers[w].taken != [0; WRITERS];
            if rules.is_off(Broken::CountOnce) {
                for o in 0..WRITERS {
                    if s.writers[w].seen & (1 << o) != 0 && s.rank(o) < s.rank(target) && s.has_zero(o) {
                        s.writers[w].taken[o] = s.count(o) + 1;
                    }
                }
            } else if !adds {
                s.writers[w].taken = s.zero[target];
            }
            s.writers[w].taken[target] = s.last(target, n) + 1;
        }
        Self::close_next(s, w, Some(target), rules);
    }

    fn close_next(s: &mut State, w: usize, above: Option<usize>, rules: &Rules) {
        let next = Self::next_above(s, s.writers[w].seen, above);
        s.writers[w].n = 0;
        s.writers[w].merged_end = 0;
        match next {
            Some(o) if rules.create_only && !rules.is_off(Broken::End) => {
                s.writers[w].target = o as u8;
                s.writers[w].at = At::Ending;
            }
            Some(o) if rules.is_off(Broken::OnePredecessor) && s.has_zero(o) => {
                s.writers[w].target = o as u8;
                s.writers[w].at = At::ListMerged;
            }
            _ if rules.is_off(Broken::ClaimFirst) => s.writers[w].at = At::Claiming,
            _ => s.writers[w].at = At::Closed,
        }
        if matches!(s.writers[w].at, At::Closed | At::Claiming) {
            s.writers[w].target = 0;
            s.writers[w].seen = 0;
        }
    }

    fn send_zero(&mut self) {
        let w = self.w;
        if !self.rules.create_only && self.state.exists_above(w) {
            self.take("sees a higher epoch and gives way", w, 0, |s| Self::leave(s, w));
            return;
        }
        self.take("sends number 0", w, 0, |s| s.writers[w].at = At::ZeroSent);
    }

    fn zero_lands(&mut self) {
        let w = self.w;
        match self.state.log[w][0] {
            Slot::Free => {
                self.take("has number 0", w, 0, |s| {
                    s.log[w][0] = Slot::Data;
                    s.zero[w] = s.writers[w].taken;
                    s.writers[w].taken = [0; WRITERS];
                    s.writers[w].at = At::Stream;
                });
                self.take("has number 0, answer lost", w, 0, |s| {
                    s.log[w][0] = Slot::Data;
                    s.zero[w] = s.writers[w].taken;
                });
            }
            Slot::Data => self.take("reads back its number 0", w, 0, |s| {
                s.writers[w].taken = [0; WRITERS];
                s.writers[w].at = At::Stream;
            }),
            Slot::End(_) => self.take("finds END at its number 0: fenced", w, 0, |s| Self::leave(s, w)),
        }
    }

    fn stream(&mut self) {
        let (w, rules) = (self.w, self.rules);
        let me = self.state.writers[w];
        let flying = (me.sent & !me.done).count_ones();
        let next = (8 - me.sent.leading_zeros() as u8).max(1);
        let lowest = (1..SLOTS as u8).find(|n| me.sent & !me.done & (1 << n) != 0);
        let near = lowest.is_none_or(|lowest| next < lowest + WINDOW as u8);
        if flying < 2 && (near || rules.is_off(Broken::Window)) && next <= rules.data[w] {
            self.take("sends", w, next, |s| s.writers[w].sent |= 1 << next);
        }
        let watermark = if rules.is_off(Broken::Gapless) {
            7 - (me.done | 1).leading_zeros() as u8
        } else {
            (1..SLOTS).take_while(|n| me.done & (1 << n) != 0).count() as u8
        };
        if rules.create_only {
            if watermark > me.settled {
                self.take("settles", w, watermark, |s| s.writers[w].settled = watermark);
            }
        } else {
            if watermark > me.cleared {
                if self.state.exists_above(w) && !rules.is_off(Broken::R7List) {
                    self.take("lists before settle: fenced", w, watermark, |s| Self::leave(s, w));
                } else {
                    self.take("lists before settle: alone", w, watermark, |s| {
                        s.writers[w].cleared = watermark;
                    });
                }
            }
            if me.cleared > me.settled {
                self.take("settles", w, me.cleared, |s| s.writers[w].settled = me.cleared);
            }
        }
        self.merge(watermark);
        if rules.is_off(Broken::EndStays)
            && let Some(o) = (0..WRITERS).find(|&o| self.state.log[o].contains(&Slot::End(w as u8)))
        {
            self.take("removes its END", o, 0, |s| {
                for slot in s.log[o].iter_mut().filter(|slot| **slot == Slot::End(w as u8)) {
                    *slot = Slot::Free;
                }
            });
        }
    }

    fn merge(&mut self, watermark: u8) {
        let (w, rules) = (self.w, self.rules);
        match self.state.writers[w].merge {
            Merge::Not if watermark >= 2 => {
                let end = watermark - 1;
                self.take("sends merged up to", w, end, |s| s.writers[w].merge = Merge::Sent(end));
            }
            Merge::Not | Merge::Done => {}
            Merge::Sent(end) => {
                self.take("has merged", w, end, |s| {
                    s.merged[w] = end;
                    s.writers[w].merge = Merge::Stored(end);
                });
                if self.state.merged[w] == 0 {
                    self.take("has merged, answer lost", w, end, |s| s.merged[w] = end);
                }
            }
            Merge::Stored(end) => {
                if self.state.exists_above(w) && !rules.is_off(Broken::R6Check) {
                    self.take("sees a higher epoch and keeps originals", w, end, |s| {
                        s.writers[w].merge = Merge::Done;
                    });
                } else {
                    self.take("sees no higher epoch", w, end, |s| {
                        s.writers[w].merge = Merge::Removing(end);
                    });
                }
            }
            Merge::Removing(end) => {
                let first = if rules.is_off(Broken::ZeroStays) { 0 } else { 1 };
                for n in first..=end {
                    if self.state.log[w][usize::from(n)] == Slot::Data {
                        self.take("removes original", w, n, |s| {
                            s.log[w][usize::from(n)] = Slot::Free;
                        });
                    }
                }
            }
        }
    }

    /// Data in flight lands, whether or not its writer still runs. The writer may have gone out before the
    /// answer: then only the store changes.
    fn data_lands(&mut self) {
        let (w, rules) = (self.w, self.rules);
        let me = self.state.writers[w];
        let streams = me.at == At::Stream;
        for n in 1..SLOTS as u8 {
            if me.sent & !me.done & (1 << n) == 0 {
                continue;
            }
            let slot = usize::from(n);
            match self.state.log[w][slot] {
                Slot::Free if streams => {
                    let copies = me.ghost == 0;
                    self.take("has", w, n, |s| {
                        s.log[w][slot] = Slot::Data;
                        s.writers[w].done |= 1 << n;
                    });
                    self.take("has, answer lost", w, n, |s| s.log[w][slot] = Slot::Data);
                    if copies && rules.data[w] > 1 {
                        self.take("has, a copy still flies", w, n, |s| {
                            s.log[w][slot] = Slot::Data;
                            s.writers[w].done |= 1 << n;
                            s.writers[w].ghost |= 1 << n;
                        });
                    }
                }
                Slot::Free => self.take("is out, but lands", w, n, |s| {
                    s.log[w][slot] = Slot::Data;
                    s.writers[w].done |= 1 << n;
                }),
                Slot::Data if streams => {
                    self.take("reads back its own", w, n, |s| s.writers[w].done |= 1 << n);
                }
                Slot::End(_) if streams => {
                    self.take("finds END: fenced", w, n, |s| {
                        Self::leave(s, w);
                        s.writers[w].sent &= !(1 << n);
                    });
                }
                Slot::Data | Slot::End(_) => {}
            }
        }
    }

    /// The store loses an object that a later one proves to have been there. Not while a claimant is about to
    /// write END to that very number: who loses what he answered in that moment fences nobody.
    fn is_lost(&mut self) {
        let w = self.w;
        if self.state.lost != [0; WRITERS] {
            return;
        }
        for n in 1..SLOTS - WINDOW {
            let aimed = self.state.writers.iter().any(|other| {
                other.at == At::Ending && usize::from(other.target) == w && usize::from(other.n) <= n
            });
            let newest = (1..SLOTS).rev().find(|&n| self.state.log[w][n] == Slot::Data).unwrap_or(0);
            let there = self.state.log[w][n] == Slot::Data && usize::from(self.state.merged[w]) < n;
            if there && newest >= n + WINDOW && !aimed {
                self.take("is lost by the store", w, n as u8, |s| {
                    s.log[w][n] = Slot::Free;
                    s.lost[w] |= 1 << n;
                });
            }
        }
    }

    /// A copy of a create that was answered long ago lands: it may meet a name that was freed since.
    fn copy_lands(&mut self) {
        let w = self.w;
        let ghost = self.state.writers[w].ghost;
        for n in (1..SLOTS as u8).filter(|n| ghost & (1 << n) != 0) {
            let slot = usize::from(n);
            self.take("has an old copy land", w, n, |s| {
                s.writers[w].ghost &= !(1 << n);
                if s.log[w][slot] == Slot::Free {
                    s.log[w][slot] = Slot::Data;
                }
            });
        }
    }
}
