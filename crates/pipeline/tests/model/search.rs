//! Breadth-first search, so that a counterexample is a shortest one.

use std::{collections::HashMap, fmt};

use crate::{
    state::{Rules, State},
    step::{Step, successors},
};

pub enum Found {
    Nothing { states: usize },
    Counterexample { steps: Vec<Step>, fault: String },
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing { states } => write!(f, "nothing found in {states} states"),
            Self::Counterexample { steps, fault } => {
                writeln!(f, "{fault}")?;
                for (at, step) in steps.iter().enumerate() {
                    writeln!(f, "  {:2} {step}", at + 1)?;
                }
                Ok(())
            }
        }
    }
}

pub fn explore(rules: &Rules) -> Found {
    let start = State::default();
    let mut seen: HashMap<State, u32> = HashMap::from([(start.clone(), 0)]);
    let mut from: Vec<(u32, Step)> = vec![(0, Step::Start)];
    let mut level = vec![(start, 0_u32)];
    let mut next = Vec::new();
    let mut out = Vec::new();
    while !level.is_empty() {
        for (state, id) in level.drain(..) {
            out.clear();
            successors(&state, rules, &mut out);
            for (step, after) in out.drain(..) {
                if seen.contains_key(&after) {
                    continue;
                }
                let new = u32::try_from(from.len()).unwrap();
                from.push((id, step));
                if let Some(fault) = after.fault(rules) {
                    return Found::Counterexample { steps: path(&from, new), fault };
                }
                seen.insert(after.clone(), new);
                next.push((after, new));
            }
        }
        std::mem::swap(&mut level, &mut next);
    }
    Found::Nothing { states: seen.len() }
}

fn path(from: &[(u32, Step)], mut at: u32) -> Vec<Step> {
    let mut steps = Vec::new();
    while at != 0 {
        let (parent, step) = from[at as usize];
        steps.push(step);
        at = parent;
    }
    steps.reverse();
    steps
}
