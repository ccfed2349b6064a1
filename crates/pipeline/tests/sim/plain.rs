//! The writer without any misfortune.

use std::time::Duration;

use holdfast_core::View;
use holdfast_pipeline::{Outcome, Phase, Pool, Settings};
use holdfast_repo::view::{DataKeys, LineageView};
use holdfast_testkit::scripted::{Script, piece_bytes};

use crate::{
    simulate,
    world::{SCRIPT, World},
};

#[test]
fn everything_is_stored_settled_and_restored() {
    for create_only in [true, false] {
        simulate(async {
            let script = Script { run_every: Duration::from_secs(40), run_pieces: 30, ..SCRIPT };
            let world = World::new(1, create_only, script).await;
            let writer = world.writer(1, world.settings.clone());
            let gauges = writer.gauges.clone();
            let stop = async {
                world.sleep(150.0).await;
                let figures = gauges.figures(world.clock.now());
                assert_eq!(figures.phase, Phase::Streaming);
                assert!(figures.at_risk < Duration::from_secs(3), "{:?}", figures.at_risk);
                assert_eq!(figures.at_risk_bytes, 0);
                writer.stop.send(true).unwrap();
            };
            let (outcome, ()) = tokio::join!(writer.run, stop);
            assert!(matches!(outcome, Outcome::Stopped), "{outcome:?}");
            let restored = world.restore().await;
            assert_eq!((restored.from, restored.to), (SCRIPT.start, world.source.head()));
            assert_eq!(world.source.settled(), world.source.head());
            assert!(restored.checkpoints >= 3, "{restored:?}");
            assert_eq!(restored.gaps, 0);
            let figures = gauges.figures(world.clock.now());
            assert_eq!(figures.counts.settled, figures.counts.received);
            // Small objects were merged, and their originals are gone.
            let names = world.sink.names();
            let merged = names.iter().filter(|name| name.contains("/merged/")).count();
            let plain = names.iter().filter(|name| name.contains("/log/")).count();
            assert!(merged >= 5 && plain < 140, "{merged} merged, {plain} plain");
            // An idle writer, stopped: the next one goes on at once, since this one released the stream.
            world.catch_up().await;
            assert_eq!(world.restore().await, restored);
        });
    }
}

/// An idle source costs a heartbeat now and then, and next to nothing else.
#[test]
fn ten_idle_minutes_cost_forty_requests_at_most() {
    for (create_only, most) in [(true, 40), (false, 75)] {
        simulate(async {
            let script = Script { busy_for: Duration::from_secs(5), ..SCRIPT };
            let mut world = World::new(6, create_only, script).await;
            world.settings = Settings::default();
            let writer = world.start(1, world.settings.clone());
            world.sleep(60.0).await;
            let before = world.sink.trace().len();
            world.sleep(600.0).await;
            let requests = world.sink.trace().len() - before;
            assert!(requests <= most, "{requests} requests");
            let figures = writer.gauges.figures(world.clock.now());
            assert!(figures.at_risk <= Duration::from_secs(2), "{:?}", figures.at_risk);
        });
    }
}

/// Somebody who waits is answered after one round trip, or two where the store must be listed first.
#[test]
fn a_waiter_waits_for_the_store_alone() {
    for (create_only, most) in [(true, 130), (false, 230)] {
        simulate(async {
            let script = Script { waits: 1000, step_bytes: 300, bytes_per_second: 4000, ..SCRIPT };
            let world = World::new(8, create_only, script).await;
            let writer = world.start(1, Settings::default());
            world.sleep(20.0).await;
            let mut worst = 0;
            for _ in 0..4000 {
                world.sleep(0.005).await;
                let behind = world.source.head() - world.source.settled();
                worst = worst.max(behind * 1000 / script.bytes_per_second);
            }
            assert!(worst <= most, "{worst} ms behind");
            drop(writer);
        });
    }
}

/// What a run has finished is named every minute: who comes after a crash finds it and sends none of it again.
#[test]
fn an_unfinished_run_is_found_again() {
    simulate(async {
        let script = Script {
            run_every: Duration::from_secs(1000),
            run_pieces: 60,
            run_takes: Duration::from_secs(180),
            busy_for: Duration::from_secs(300),
            ..SCRIPT
        };
        let world = World::new(3, true, script).await;
        let writer = world.start(1, world.settings.clone());
        world.sleep(140.0).await;
        writer.crash();
        let next = world.start(1, world.settings.clone());
        world.sleep(10.0).await;
        let keys = DataKeys::new(world.access(), world.key.repo, Some(world.identity.clone()));
        let view = LineageView::open(world.access(), keys.into()).await.unwrap().unwrap();
        let run = view.catalog().runs.first().expect("the run is named").clone();
        let began = u64::from_le_bytes(run.body.as_ref().try_into().unwrap());
        let rows = view.rows(&run.layers, &[], usize::MAX).await.unwrap();
        assert!(rows.len() >= 18, "{} rows of 45 are named", rows.len());
        for (piece, row) in rows.iter().enumerate() {
            assert_eq!(view.content(&row.held[0]).await.unwrap(), piece_bytes(began, piece as u64));
        }
        drop(next);
    });
}

/// A stop does not wait for a store that is away; what is not settled stays with the source.
#[test]
fn a_stop_ends_within_its_time() {
    for create_only in [true, false] {
        simulate(async {
            let world = World::new(4, create_only, SCRIPT).await;
            let writer = world.start(1, world.settings.clone());
            world.sleep(20.0).await;
            world.sink.go_down(Duration::from_secs(600));
            world.sleep(2.0).await;
            let began = world.clock.now();
            assert!(matches!(writer.stop().await, Outcome::Stopped));
            let took = world.clock.now() - began;
            assert!(took <= world.settings.stop_grace + Duration::from_secs(6), "{took:?}");
            world.sink.calm();
            let settled = world.source.settled();
            assert!(world.restore().await.to >= settled);
            world.catch_up().await;
            assert_eq!(world.restore().await.to, world.source.head());
        });
    }
}

/// The same writer on many threads and in real time.
#[test]
fn sealing_threads_change_nothing() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
    runtime.block_on(async {
        let script = Script {
            bytes_per_second: 4_000_000,
            step_bytes: 100_000,
            busy_for: Duration::from_secs(2),
            run_every: Duration::from_secs(10),
            run_pieces: 2,
            run_takes: Duration::from_millis(500),
            ..SCRIPT
        };
        let mut world = World::new(5, true, script).await;
        world.pool = Pool::threads(2).unwrap();
        world.settings.batch_bytes = 1 << 20;
        let writer = world.start(1, world.settings.clone());
        world.sleep(4.0).await;
        assert!(matches!(writer.stop().await, Outcome::Stopped));
        world.catch_up().await;
        let restored = world.restore().await;
        assert_eq!((restored.to, restored.checkpoints >= 1), (world.source.head(), true), "{restored:?}");
    });
}
