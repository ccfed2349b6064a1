//! An explicit-state model of R2 to R7 (design.md section 6), explored breadth first.
//!
//! Up to three writers start at any time and may stop for ever between any two steps. A create lands at any
//! later moment, or its answer is lost and the same bytes are sent again, or a copy of it lands once more much
//! later. Two data creates are in flight. Merge, check, removal one by one, take-over and settle are steps of
//! their own, and so is each listing. Where a test says so, the store loses an object that it held.
//!
//! Two things must hold in every state: what was settled is in the reader's view (R5), and the view is one
//! chain in which each object goes on where the one before it ended. A rule that is switched off must give
//! a counterexample, which is printed.
//!
//! `HOLDFAST_MODEL=large` explores three writers with more objects too (8 million states, some minutes, 2 GB).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

mod search;
mod state;
mod step;

use search::{Found, explore};
use state::{Broken, Rules};

fn holds(rules: Rules) {
    let found = explore(&rules);
    match found {
        Found::Nothing { states } => println!("{}: holds, {states} states", rules.name()),
        Found::Counterexample { .. } => panic!("{}: {found}", rules.name()),
    }
}

/// `longest`: a counterexample of at most so many steps must exist, else the rule would not be needed.
fn breaks(rules: Rules, longest: usize) {
    let found = explore(&rules);
    match &found {
        Found::Nothing { states } => panic!("{}: no counterexample in {states} states", rules.name()),
        Found::Counterexample { steps, .. } => {
            println!("{}: {found}", rules.name());
            assert!(steps.len() <= longest, "{} steps", steps.len());
        }
    }
}

fn large() -> bool {
    std::env::var("HOLDFAST_MODEL").is_ok_and(|v| v == "large")
}

#[test]
fn create_only_holds_with_two_writers() {
    holds(Rules::create_only(&[2, 2]));
    holds(Rules::create_only(&[3, 1]));
}

#[test]
fn create_only_holds_with_three_writers() {
    holds(Rules::create_only(&[2, 1, 1]));
    if large() {
        holds(Rules::create_only(&[2, 2, 2]));
    }
}

#[test]
fn without_create_only_holds_with_two_writers() {
    holds(Rules::plain(&[2, 2]));
    holds(Rules::plain(&[3, 1]));
}

#[test]
fn without_create_only_holds_with_three_writers() {
    holds(Rules::plain(&[1, 1, 1]));
    if large() {
        holds(Rules::plain(&[2, 1, 1]));
    }
}

#[test]
fn a_lost_object_costs_itself_alone() {
    holds(Rules::create_only(&[3, 1]).losing());
    holds(Rules::plain(&[3, 1]).losing());
}

#[test]
fn taking_a_lost_object_for_the_end_loses_what_follows() {
    breaks(Rules::create_only(&[3, 1]).losing().without(Broken::StepOver), 30);
    breaks(Rules::plain(&[3, 1]).losing().without(Broken::StepOver), 30);
}

#[test]
fn without_a_window_a_create_in_flight_is_taken_for_lost() {
    breaks(Rules::create_only(&[3, 1]).without(Broken::Window), 30);
    breaks(Rules::plain(&[3, 1]).without(Broken::Window), 30);
}

#[test]
fn removing_originals_without_looking_at_epochs_loses() {
    breaks(Rules::create_only(&[2, 1]).without(Broken::R6Check), 24);
    breaks(Rules::plain(&[2, 1]).without(Broken::R6Check), 24);
}

#[test]
fn closing_before_claiming_loses() {
    breaks(Rules::create_only(&[2, 1]).without(Broken::ClaimFirst), 24);
    breaks(Rules::plain(&[1, 1]).without(Broken::ClaimFirst), 24);
}

#[test]
fn without_end_objects_a_zombie_settles() {
    breaks(Rules::create_only(&[1, 1]).without(Broken::End), 20);
}

#[test]
fn an_end_that_is_removed_loses() {
    breaks(Rules::create_only(&[1, 1]).without(Broken::EndStays), 24);
}

#[test]
fn an_end_above_a_hole_loses() {
    breaks(Rules::create_only(&[2, 1]).without(Broken::LowestHole), 24);
}

#[test]
fn keeping_the_first_predecessor_loses() {
    breaks(Rules::create_only(&[1, 1, 1]).without(Broken::NewestPredecessor), 34);
}

#[test]
fn counting_two_predecessors_skips_or_doubles() {
    breaks(Rules::plain(&[1, 1, 1]).without(Broken::OnePredecessor), 34);
}

#[test]
fn counting_again_what_was_taken_over_shifts_numbers() {
    breaks(Rules::plain(&[2, 1, 1]).without(Broken::CountOnce), 34);
}

#[test]
fn settling_without_listing_first_loses() {
    breaks(Rules::plain(&[1, 1]).without(Broken::R7List), 20);
}

#[test]
fn reading_from_an_epoch_without_number_zero_loses() {
    breaks(Rules::create_only(&[1, 1]).without(Broken::ReadFromZero), 20);
    breaks(Rules::plain(&[1, 1]).without(Broken::ReadFromZero), 20);
}

#[test]
fn reading_past_what_was_taken_over_forks() {
    breaks(Rules::plain(&[2, 1]).without(Broken::ReadToEnd), 26);
}

#[test]
fn settling_past_a_hole_loses() {
    breaks(Rules::create_only(&[2, 1]).without(Broken::Gapless), 20);
    breaks(Rules::plain(&[2, 1]).without(Broken::Gapless), 20);
}

#[test]
fn merging_number_zero_loses() {
    breaks(Rules::create_only(&[2, 1, 1]).without(Broken::ZeroStays), 34);
}

#[test]
fn equal_epoch_numbers_on_a_create_only_store_lose() {
    breaks(Rules::create_only(&[1, 1]).without(Broken::NumberIsName), 20);
}
