//! The failing schedules that led to the rules (research page «why», sections 1 and 10), by name, on the real
//! writer. Each ends with a restore that must hold everything that the source was told to forget.

use std::time::Duration;

use holdfast_core::{Act, Epoch, View};
use holdfast_pipeline::{Outcome, Phase, Settings};
use holdfast_repo::{epoch::EpochObject, names::Name, ring::FORMAT};
use holdfast_testkit::{Cruelty, scripted::Script};

use crate::{
    simulate,
    world::{Running, SCRIPT, World},
};

/// A store that takes its time, so that a schedule can get in between two steps.
async fn world(create_only: bool) -> World {
    world_of(create_only, Script { busy_for: Duration::from_secs(600), ..SCRIPT }).await
}

async fn world_of(create_only: bool, script: Script) -> World {
    let world = World::new(7, create_only, script).await;
    world.sink.set_cruelty(Cruelty { latency: Duration::from_millis(40), ..Cruelty::NONE });
    world
}

pub fn log(epoch: u64) -> String {
    format!("/log/{epoch:016x}")
}

/// Whatever happened, the stream holds all that was settled, and goes on.
pub async fn check(world: &World) {
    world.sink.calm();
    let restored = world.restore().await;
    let settled = world.source.settled();
    assert!(restored.to >= settled || settled == SCRIPT.start, "settled {settled}, {restored:?}");
    assert_eq!(restored.gaps, 0);
    world.catch_up().await;
    let restored = world.restore().await;
    assert_eq!((restored.from, restored.to), (SCRIPT.start, world.source.head()));
}

pub async fn streams(world: &World, running: &Running) {
    world.until("a writer streams", || world.phase(running) == Phase::Streaming).await;
    let stored = || running.gauges.figures(world.clock.now()).counts.settled.objects;
    let before = stored();
    world.until("it settles", || stored() > before + 3).await;
}

fn trace_of(world: &World, name: &str) -> Vec<String> {
    world.source.trace().into_iter().filter(|line| line.split(' ').nth(1) == Some(name)).collect()
}

/// The number that follows `word` in a line of the trace.
fn number_after(line: &str, word: &str) -> Option<u64> {
    let (_, rest) = line.split_once(word)?;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// 1.1 (a): numbers that a successor merged away are no hole through which a zombie could settle.
#[test]
fn why_1_1_a_a_zombie_meets_an_end_and_settles_nothing() {
    for create_only in [true, false] {
        simulate(async {
            let world = world(create_only).await;
            let zombie = world.start(1, world.settings.clone());
            streams(&world, &zombie).await;
            zombie.pause();
            let successor = world.start(2, world.taking_over());
            streams(&world, &successor).await;
            world.sleep(120.0).await;
            assert!(!world.names("/merged/").is_empty());
            let before = trace_of(&world, "i1").len();
            zombie.wake();
            world.until("the zombie knows", || world.phase(&zombie) == Phase::Standby).await;
            // Only what the successor took over: answers that had come before the pause.
            let taken = trace_of(&world, "i2").iter().find_map(|line| number_after(line, "opens at "));
            let after = trace_of(&world, "i1").split_off(before);
            assert!(
                after.iter().all(|line| number_after(line, "settles ") <= taken),
                "{after:?} of {taken:?}"
            );
            let sentence = zombie.gauges.figures(world.clock.now()).sentence;
            assert!(sentence.contains("another writer"), "{sentence}");
            assert!(matches!(zombie.stop().await, Outcome::Stopped));
            assert!(matches!(successor.stop().await, Outcome::Stopped));
            check(&world).await;
        });
    }
}

/// 1.1 (b): from the moment a claim exists, nobody removes what the claimant may be counting.
#[test]
fn why_1_1_b_a_claim_stops_the_removal_of_originals() {
    for create_only in [true, false] {
        simulate(async {
            let world = world(create_only).await;
            let owner = world.start(1, world.settings.clone());
            streams(&world, &owner).await;
            let claimant = world.start(2, world.taking_over());
            world.until("the claim exists", || world.names("/epochs/").len() == 2).await;
            claimant.pause();
            let originals = world.names("/log/");
            if create_only {
                world.until("the owner merges", || world.names("/merged/").len() >= 2).await;
            } else {
                world.sleep(60.0).await;
            }
            let names = world.names("/log/");
            assert!(originals.iter().all(|name| names.contains(name)), "originals were removed");
            claimant.wake();
            streams(&world, &claimant).await;
            assert_eq!(world.phase(&owner), Phase::Standby);
            drop((owner, claimant));
            check(&world).await;
        });
    }
}

/// 1.2: an epoch ends at its lowest hole; what landed above it collides with nobody.
#[test]
fn why_1_2_an_epoch_ends_at_its_lowest_hole() {
    for create_only in [true, false] {
        simulate(async {
            let world = world(create_only).await;
            let owner = world.start(1, world.settings.clone());
            streams(&world, &owner).await;
            // The next number hangs, those after it land.
            let next = world.names("/log/").len() as u64 + 6;
            let hole = format!("/{next:016x}");
            world.sink.hold(hole.as_str());
            let epoch = if create_only { format!("{}/", log(1)) } else { log(1) };
            let above = || {
                let names = world.names(&epoch);
                names.iter().filter(|name| name.as_str() > hole_name(&names, next).as_str()).count()
            };
            world.until("numbers above the hole land", || world.sink.held() > 0 && above() >= 2).await;
            owner.crash();
            world.sink.hold_no_more();
            let successor = world.start(2, world.taking_over());
            streams(&world, &successor).await;
            world.sink.let_go();
            world.sleep(30.0).await;
            assert_eq!(world.phase(&successor), Phase::Streaming, "leftovers stopped the living writer");
            drop(successor);
            check(&world).await;
        });
    }
}

/// The name that number `number` has among `names` of one epoch.
fn hole_name(names: &[String], number: u64) -> String {
    let folder = names.first().and_then(|name| name.rsplit_once('/')).map_or("", |(folder, _)| folder);
    format!("{folder}/{number:016x}")
}

/// 1.3: an object that lands after its epoch was taken over is not counted by the next successor either.
#[test]
fn why_1_3_what_was_taken_over_is_never_counted_again() {
    for create_only in [true, false] {
        simulate(async {
            let world = world(create_only).await;
            let first = world.start(1, world.settings.clone());
            streams(&world, &first).await;
            world.sink.hold(log(1));
            world.until("objects hang", || world.sink.held() >= 2).await;
            first.crash();
            world.sink.hold_no_more();
            let second = world.start(2, world.taking_over());
            streams(&world, &second).await;
            world.sink.let_go();
            streams(&world, &second).await;
            second.crash();
            let third = world.start(3, world.taking_over());
            streams(&world, &third).await;
            drop(third);
            check(&world).await;
        });
    }
}

/// 1.4 (R1): no log object names content that is not durable, and content that hangs delays no commit.
#[test]
fn why_1_4_content_is_durable_before_anything_names_it() {
    simulate(async {
        let script = Script {
            busy_for: Duration::from_secs(200),
            run_every: Duration::from_secs(1000),
            run_pieces: 10,
            run_takes: Duration::from_secs(5),
            ..SCRIPT
        };
        let world = world_of(true, script).await;
        world.sink.hold("/packs/");
        let owner = world.start(1, world.settings.clone());
        world.until("a pack hangs", || world.sink.held() > 0).await;
        world.sleep(100.0).await;
        let figures = owner.gauges.figures(world.clock.now());
        assert!(
            figures.at_risk < Duration::from_secs(3),
            "commits waited for content: {:?}",
            figures.at_risk
        );
        owner.crash();
        let restored = world.restore().await;
        assert_eq!(restored.checkpoints, 0);
        check(&world).await;
    });
}

/// 1.6: an answer that does not come is no answer. The same bytes go again, and «exists» is read back.
#[test]
fn why_1_6_ambiguous_creates_neither_lose_nor_fence() {
    for create_only in [true, false] {
        simulate(async {
            let world = world_of(create_only, SCRIPT).await;
            world.sink.set_cruelty(Cruelty {
                latency: Duration::from_millis(40),
                lost_answer: 300,
                refused: 200,
                late: 200,
                late_by: Duration::from_secs(20),
                copy: 200,
                no_removal: false,
            });
            let owner = world.start(1, world.settings.clone());
            world.sleep(150.0).await;
            assert_eq!(world.phase(&owner), Phase::Streaming);
            assert_eq!(world.names("/epochs/").len(), 1, "a lost answer cost an epoch");
            world.sink.set_cruelty(Cruelty::NONE);
            assert!(matches!(owner.stop().await, Outcome::Stopped));
            check(&world).await;
        });
    }
}

/// 1.6: what lands after its writer died, and before it was closed, is data and is taken over.
#[test]
fn why_1_6_what_landed_before_the_end_is_taken_over() {
    simulate(async {
        let world = world(true).await;
        let owner = world.start(1, world.settings.clone());
        streams(&world, &owner).await;
        world.sink.hold(log(1));
        world.until("an object hangs", || world.sink.held() >= 2).await;
        owner.crash();
        let before = world.restore().await;
        world.sink.let_go();
        let after = world.restore().await;
        assert!(after.to > before.to);
        let successor = world.start(2, world.taking_over());
        streams(&world, &successor).await;
        let opened = format!("opens at {}", after.to);
        assert!(
            trace_of(&world, "i2").iter().any(|line| line.contains(&opened)),
            "{:?}",
            trace_of(&world, "i2")
        );
        drop(successor);
        check(&world).await;
    });
}

/// 1.7: two starts at once leave one writer and one standby, not a duel.
#[test]
fn why_1_7_two_starts_at_once_leave_one_writer() {
    for create_only in [true, false] {
        simulate(async {
            let world = world(create_only).await;
            let one = world.start(1, world.settings.clone());
            let two = world.start(2, world.settings.clone());
            world.sleep(300.0).await;
            let mut phases = [world.phase(&one).name(), world.phase(&two).name()];
            phases.sort_unstable();
            assert_eq!(phases, ["standby", "streaming"]);
            assert!(world.names("/epochs/").len() <= 3, "{:?}", world.names("/epochs/"));
            drop((one, two));
            check(&world).await;
        });
    }
}

/// 1.7: a host that was cloned with its state folder has the same instance, and still does not duel for ever.
#[test]
fn why_1_7_a_cloned_state_folder_leaves_one_writer() {
    for create_only in [true, false] {
        simulate(async {
            let world = world(create_only).await;
            let one = world.start(1, world.settings.clone());
            streams(&world, &one).await;
            let clone = world.start(1, world.settings.clone());
            world.sleep(300.0).await;
            let mut phases = [world.phase(&one).name(), world.phase(&clone).name()];
            phases.sort_unstable();
            assert_eq!(phases, ["standby", "streaming"]);
            assert_eq!(world.names("/epochs/").len(), 2);
            drop((one, clone));
            check(&world).await;
        });
    }
}

/// 1.7: an instance that starts again claims at once, another one after silence, or after a release.
#[test]
fn why_1_7_who_waits_and_who_does_not() {
    simulate(async {
        let world = world(true).await;
        let first = world.start(1, world.settings.clone());
        streams(&world, &first).await;
        first.crash();
        let again = world.start(1, world.settings.clone());
        let start = world.clock.now();
        streams(&world, &again).await;
        assert!(world.clock.now() - start < Duration::from_secs(5), "the same instance waited");

        let manual = Settings { takeover: holdfast_pipeline::Takeover::Manual, ..world.settings.clone() };
        let patient = world.start(3, manual);
        again.crash();
        let start = world.clock.now();
        let other = world.start(2, world.settings.clone());
        streams(&world, &other).await;
        let waited = world.clock.now() - start;
        assert!(waited >= world.settings.heartbeat * 3, "it took over after {waited:?}");
        assert!(waited < world.settings.heartbeat * 6, "it took over after {waited:?}");
        assert_eq!(world.phase(&patient), Phase::Standby);

        assert!(matches!(other.stop().await, Outcome::Stopped));
        let start = world.clock.now();
        world.until("a release frees the stream", || world.phase(&patient) == Phase::Streaming).await;
        assert!(world.clock.now() - start < world.settings.heartbeat, "a release was waited for");
        drop(patient);
        check(&world).await;
    });
}

/// A password that is changed on both sides, one after the other: a stream that ran goes on by itself, one that
/// never did says so and ends.
#[test]
fn a_source_that_refuses_us_for_a_while_is_gone_on_with() {
    simulate(async {
        let world = world(true).await;
        let running = world.start(1, world.settings.clone());
        streams(&world, &running).await;
        world.source.set_refusing(true);
        world.until("it says so", || world.phase(&running) == Phase::Failed).await;
        let said = running.gauges.figures(world.clock.now()).sentence;
        assert!(said.contains("refuses the password"), "{said}");
        let epochs = world.names("/epochs/").len();
        world.sleep(600.0).await;
        assert_eq!(world.names("/epochs/").len(), epochs, "nothing is claimed while the source refuses us");
        let never_ran = world.start(2, world.taking_over()).end().await;
        let Outcome::Failed(error) = never_ran else { panic!("{never_ran:?}") };
        assert_eq!(error.act(), Act::Configure);
        world.source.set_refusing(false);
        streams(&world, &running).await;
        drop(running);
        check(&world).await;
    });
}

/// 1.7: a crash loop in front of a source that does not answer leaves no epoch objects.
#[test]
fn why_1_7_no_claim_without_an_answer_of_the_source() {
    simulate(async {
        let world = world(true).await;
        world.source.set_unreachable(true);
        for _ in 0..20 {
            let running = world.start(1, world.taking_over());
            world.sleep(10.0).await;
            running.crash();
        }
        assert!(world.names("/epochs/").is_empty());
        world.source.set_unreachable(false);
        check(&world).await;
    });
}

/// Section 10, row 1: number 0 is never freed, so who saw it free and slept meets it, or is fenced.
#[test]
fn why_10_1_a_claimant_that_saw_no_number_0_meets_it_later() {
    simulate(async {
        let world = world(true).await;
        world.sink.hold(format!("{}/{:016x}", log(1), 0));
        let first = world.start(1, world.settings.clone());
        world.until("its number 0 hangs", || world.sink.held() > 0).await;
        let sleeper = world.start(2, world.taking_over());
        world
            .until("the sleeper looked", || {
                world.names("/epochs/").len() == 2
                    && world.sink.trace().iter().any(|line| line.contains("read") && line.contains(&log(1)))
            })
            .await;
        sleeper.pause();
        world.sink.let_go();
        streams(&world, &first).await;
        let third = world.start(3, world.taking_over());
        streams(&world, &third).await;
        sleeper.wake();
        world.until("the sleeper knows", || world.phase(&sleeper) == Phase::Standby).await;
        assert_eq!(world.phase(&third), Phase::Streaming);
        drop((first, sleeper, third));
        check(&world).await;
    });
}

/// Section 10, row 2: heartbeats of a writer that lost its source vouch for nothing, and keep no standby out.
#[test]
fn why_10_2_empty_heartbeats_vouch_for_nothing() {
    for create_only in [true, false] {
        simulate(async {
            let world = world(create_only).await;
            let blind = world.start(1, world.settings.clone());
            streams(&world, &blind).await;
            world.source.set_cut_off("i1", true);
            let cut = world.clock.wall();
            world.sleep(25.0).await;
            let figures = blind.gauges.figures(world.clock.now());
            assert!(figures.at_risk >= Duration::from_secs(24), "{:?}", figures.at_risk);
            let access = world.access();
            let keys = holdfast_repo::view::DataKeys::new(access.clone(), world.key.repo, None);
            let view = holdfast_repo::view::LineageView::open(access, keys.into()).await.unwrap().unwrap();
            assert!(view.vouched().unwrap() <= cut, "a moment is promised that nobody saw");
            let start = world.clock.now();
            let standby = world.start(2, world.settings.clone());
            streams(&world, &standby).await;
            let waited = world.clock.now() - start;
            assert!(waited < world.settings.heartbeat * 6, "the standby was kept out for {waited:?}");
            drop((blind, standby));
            check(&world).await;
        });
    }
}

/// Section 10, row 3: a number 0 that lands while its epoch is passed over is not counted beside another one.
#[test]
fn why_10_3_a_late_number_0_is_counted_once() {
    for create_only in [true, false] {
        simulate(async {
            let world = world(create_only).await;
            let zero = |epoch: u64| format!("{}/{:016x}", log(epoch), 0);
            world.sink.hold(if create_only { zero(1) } else { log(1) });
            let first = world.start(1, world.settings.clone());
            world.until("1.0 hangs", || world.sink.held() > 0).await;
            first.pause();
            let second = world.start(2, world.taking_over());
            world.until("2 took 1 for dead", || world.names("/epochs/").len() == 2).await;
            world.sleep(0.5).await;
            second.pause();
            world.sink.let_go();
            first.wake();
            world.sleep(5.0).await;
            let third = world.start(3, world.taking_over());
            world.until("3 claims", || world.names("/epochs/").len() == 3).await;
            world.sleep(0.1).await;
            second.wake();
            world.sleep(20.0).await;
            drop((first, second, third));
            check(&world).await;
        });
    }
}

/// Section 10, row 9: a writer without its store lets go of the source, so that a successor can stream.
#[test]
fn why_10_9_a_writer_without_its_store_lets_go_of_the_source() {
    for create_only in [true, false] {
        simulate(async {
            let world = world(create_only).await;
            let way = world.sink.another_way();
            let lonely = world.start_over(way.clone(), 1, world.settings.clone());
            streams(&world, &lonely).await;
            way.cut_off(true);
            world.sleep(world.settings.heartbeat.as_secs_f64() * 2.0 + 5.0).await;
            let trace = trace_of(&world, "i1");
            assert!(trace.last().unwrap().contains("says good-bye"), "{trace:?}");
            let before = trace.len();
            let successor = world.start(2, world.settings.clone());
            streams(&world, &successor).await;
            way.cut_off(false);
            world.until("it knows", || world.phase(&lonely) == Phase::Standby).await;
            // Only what the successor took over: answers that had come before the pause.
            let taken = trace_of(&world, "i2").iter().find_map(|line| number_after(line, "opens at "));
            let after = trace_of(&world, "i1").split_off(before);
            assert!(
                after.iter().all(|line| number_after(line, "settles ") <= taken),
                "{after:?} of {taken:?}"
            );
            assert_eq!(world.phase(&successor), Phase::Streaming);
            drop((lonely, successor));
            check(&world).await;
        });
    }
}

/// While the store is away the source is not read for ever: what is in memory has a bound.
#[test]
fn an_outage_fills_no_memory() {
    simulate(async {
        let busy_for = Duration::from_secs(40);
        let script = Script { bytes_per_second: 400_000, step_bytes: 100_000, busy_for, ..SCRIPT };
        let mut world = world_of(true, script).await;
        world.settings.budget.stream = 2 << 20;
        let owner = world.start(1, world.settings.clone());
        streams(&world, &owner).await;
        world.sink.go_down(Duration::from_secs(60));
        for _ in 0..55 {
            world.sleep(1.0).await;
            let held = owner.gauges.figures(world.clock.now()).at_risk_bytes;
            assert!(held <= 2 << 20, "{held} bytes in memory");
        }
        world.sleep(30.0).await;
        drop(owner);
        check(&world).await;
    });
}

/// An object that a store holds in part (which its contract forbids) is named, not guessed about.
#[test]
fn a_torn_object_is_named_by_writer_and_reader() {
    simulate(async {
        let world = world(true).await;
        let owner = world.start(1, world.settings.clone());
        streams(&world, &owner).await;
        owner.crash();
        world.sink.calm();
        let last = world.names(&log(1)).pop().unwrap();
        let whole = world.sink.get(&last).unwrap();
        world.sink.tamper(&last, whole.slice(..whole.len() / 2));
        let started = world.writer(2, world.taking_over());
        let outcome = world.clock.timeout(Duration::from_secs(60), started.run).await;
        let Some(Outcome::Failed(error)) = outcome else {
            panic!("a torn object was taken over: {outcome:?}")
        };
        assert_eq!(error.act(), Act::Corrupt);
        let name = last.rsplit_once('/').unwrap().1;
        assert!(error.chain().contains(name), "{}", error.chain());
        world.sink.tamper(&last, whole);
        check(&world).await;
    });
}

/// A store that comes back finds the same writer, which goes on where it was.
#[test]
fn a_store_outage_of_ten_minutes_is_waited_for() {
    for create_only in [true, false] {
        simulate(async {
            let world = world_of(create_only, Script { busy_for: Duration::from_secs(900), ..SCRIPT }).await;
            let owner = world.start(1, world.settings.clone());
            streams(&world, &owner).await;
            world.sink.go_down(Duration::from_secs(600));
            world.sleep(590.0).await;
            let figures = owner.gauges.figures(world.clock.now());
            assert!(figures.at_risk > Duration::from_secs(580) && figures.store_trouble.is_some());
            world.sleep(60.0).await;
            streams(&world, &owner).await;
            let figures = owner.gauges.figures(world.clock.now());
            assert!(figures.at_risk < Duration::from_secs(3), "{figures:?}");
            assert_eq!(world.names("/epochs/").len(), 1);
            drop(owner);
            check(&world).await;
        });
    }
}

/// FORMAT.md section 9: a repository that was raised to a newer format is refused before the first write, by a
/// first start and by a standby that opened it long before.
#[test]
fn a_newer_format_is_refused_before_the_first_write() {
    simulate(async {
        let world = world(true).await;
        let newer = Name::Format(FORMAT + 1).to_string();
        let owner = world.start(1, world.settings.clone());
        streams(&world, &owner).await;
        let standby = world.start(2, world.settings.clone());
        world.until("it stands by", || world.phase(&standby) == Phase::Standby).await;
        world.put(&newer, Vec::new()).await;
        owner.crash();
        // What it had sent may land.
        world.sleep(1.0).await;
        let before = world.sink.names();
        for refused in [standby.end().await, world.start(3, world.taking_over()).end().await] {
            let Outcome::Failed(error) = refused else { panic!("{refused:?}") };
            assert_eq!(error.act(), Act::Configure);
            assert!(error.to_string().contains("newer holdfast"), "{error}");
        }
        assert_eq!(world.sink.names(), before);
    });
}

async fn ring_of(world: &World, epoch: u64) -> u64 {
    let access = world.access();
    let name = access.stream.epoch(Epoch::numbered(epoch));
    let bytes = world.sink.get(&name).unwrap();
    EpochObject::open(&access.source_key, access.stream, Epoch::numbered(epoch), &bytes).unwrap().ring
}

/// Section 10, row 10: no number 0 under a ring that was replaced while claiming.
#[test]
fn why_10_10_a_ring_that_grew_is_claimed_anew() {
    simulate(async {
        let world = world(true).await;
        let claimant = world.start(1, world.settings.clone());
        world.until("it claims", || world.names("/epochs/").len() == 1).await;
        claimant.pause();
        world.put_ring(2).await;
        claimant.wake();
        streams(&world, &claimant).await;
        assert_eq!(world.names("/epochs/").len(), 2);
        assert!(
            world.names(&log(1)).iter().all(|name| name.ends_with(&"0".repeat(16))),
            "epoch 1 wrote data"
        );
        assert_eq!(ring_of(&world, 2).await, 2);
        // A running writer rolls to a new epoch.
        world.put_ring(3).await;
        world.until("it rolls", || world.names("/epochs/").len() == 3).await;
        streams(&world, &claimant).await;
        assert_eq!(ring_of(&world, 3).await, 3);
        drop(claimant);
        check(&world).await;
    });
}

/// R6: a claim above us that comes to nothing is answered with a new epoch, so that merging goes on.
#[test]
fn a_claim_that_does_nothing_for_an_hour_is_passed() {
    simulate(async {
        let world = world(true).await;
        let owner = world.start(1, world.settings.clone());
        streams(&world, &owner).await;
        let claimant = world.start(2, world.taking_over());
        world.until("the claim exists", || world.names("/epochs/").len() == 2).await;
        claimant.crash();
        world.sleep(3500.0).await;
        assert_eq!(world.phase(&owner), Phase::Streaming);
        assert_eq!(world.names("/epochs/").len(), 2);
        world.sleep(800.0).await;
        assert_eq!(world.names("/epochs/").len(), 3);
        assert_eq!(world.phase(&owner), Phase::Streaming);
        drop(owner);
        check(&world).await;
    });
}
