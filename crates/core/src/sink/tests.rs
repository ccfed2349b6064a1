//! The decorators against a store that answers by script, in paused time.

use std::{collections::VecDeque, sync::Mutex, time::Duration};

use super::*;
use crate::{Act, Clock, Error, Instant, Random, Timestamp};

/// Takes its answers from a list, then succeeds; notes when it was asked. Each call lasts `latency`.
struct Scripted {
    answers: Mutex<VecDeque<Act>>,
    asked: Mutex<Vec<Instant>>,
    latency: Duration,
}

impl Scripted {
    fn new(answers: impl IntoIterator<Item = Act>) -> Arc<Self> {
        Arc::new(Self {
            answers: Mutex::new(answers.into_iter().collect()),
            asked: Mutex::default(),
            latency: Duration::from_millis(40),
        })
    }
    async fn answer(&self) -> Result<()> {
        let clock = Clock::system();
        self.asked.lock().unwrap().push(clock.now());
        let next = self.answers.lock().unwrap().pop_front();
        clock.sleep(self.latency).await;
        next.map_or(Ok(()), |act| Err(Error::new(act, "scripted")))
    }
    fn asked(&self) -> usize {
        self.asked.lock().unwrap().len()
    }
}

#[async_trait]
impl Sink for Scripted {
    async fn capabilities(&self) -> Result<Capabilities> {
        self.answer().await?;
        Ok(Capabilities { create_only: true, history: String::new() })
    }
    async fn create(&self, _: &str, _: Body) -> Result<Created> {
        self.answer().await.map(|()| Created::New)
    }
    async fn read(&self, _: &str, _: Range) -> Result<Option<Bytes>> {
        self.answer().await.map(|()| Some(Bytes::from_static(b"12345")))
    }
    async fn list(&self, _: &str, _: Option<&str>, _: usize) -> Result<Page> {
        self.answer().await.map(|()| Page::default())
    }
    async fn remove(&self, _: &[String]) -> Result<()> {
        self.answer().await
    }
    fn address(&self) -> String {
        "scripted".to_owned()
    }
    fn clock(&self) -> Option<(Instant, Timestamp)> {
        Some((*self.asked.lock().unwrap().last()?, Timestamp(77)))
    }
}

fn stack(inner: Arc<Scripted>, settings: RetrySettings) -> (Retrying, Arc<Meter>) {
    let clock = Clock::system();
    let meter = Meter::new(clock.clone());
    let metered = Arc::new(Metered::new(inner, meter.clone()));
    let urgent: Urgent = |name| name.starts_with("log/");
    (Retrying::new(metered, settings, urgent, clock, Random::seeded(7), meter.clone()), meter)
}

#[tokio::test(start_paused = true)]
async fn passing_errors_are_tried_again_and_counted() {
    let inner = Scripted::new([Act::Retry, Act::SlowDown, Act::Retry]);
    let (sink, meter) = stack(inner.clone(), RetrySettings::default());
    assert_eq!(sink.create("log/1", Body::from(vec![0; 9])).await.unwrap(), Created::New);
    let figures = meter.figures();
    let create = figures.iter().find(|f| f.operation == Operation::Create).unwrap();
    assert_eq!((create.done, create.passing, create.slow_down, create.retries), (1, 3, 1, 3));
    assert_eq!((create.bytes, create.busy, create.failed), (9, 0, 0));
    assert_eq!(create.time, Duration::from_millis(160), "pauses are not the store's latency");
    assert_eq!(create.classes.iter().sum::<u64>(), 4);
    assert_eq!(create.classes[LATENCY_MS.partition_point(|ms| *ms < 40)], 4);
    assert!(create.answered.is_some());
    assert_eq!(figures.iter().find(|f| f.operation == Operation::List).unwrap().answered, None);
}

#[tokio::test(start_paused = true)]
async fn other_errors_go_up_at_once() {
    for act in [Act::Configure, Act::Corrupt, Act::Fenced, Act::Bug, Act::Unreachable, Act::LostLineage] {
        let inner = Scripted::new([act]);
        let (sink, meter) = stack(inner.clone(), RetrySettings::default());
        assert_eq!(sink.read("a", Range::All).await.unwrap_err().act(), act);
        assert_eq!(inner.asked(), 1);
        let read = meter.figures().into_iter().find(|f| f.operation == Operation::Read).unwrap();
        assert_eq!((read.failed, read.passing, read.retries), (1, 0, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn patience_ends_and_the_last_error_is_kept() {
    let inner = Scripted::new(std::iter::repeat_n(Act::Retry, 10_000));
    let settings = RetrySettings { patience: Some(Duration::from_secs(60)), ..Default::default() };
    let (sink, _) = stack(inner.clone(), settings);
    let clock = Clock::system();
    let began = clock.now();
    let error = sink.list("packs/", None, 10).await.unwrap_err();
    assert!(error.is_passing());
    assert!(error.chain().contains("«packs/»") && error.chain().ends_with("scripted"), "{}", error.chain());
    assert!(clock.now() - began <= Duration::from_secs(61), "{:?}", clock.now() - began);
    assert!(inner.asked() > 8, "{}", inner.asked());
}

#[tokio::test(start_paused = true)]
async fn without_a_deadline_it_goes_on_for_ever_with_bounded_pauses() {
    let inner = Scripted::new(std::iter::repeat_n(Act::Retry, 2_000));
    let (sink, _) = stack(inner.clone(), RetrySettings::default());
    sink.remove(&["a".to_owned()]).await.unwrap();
    let asked = inner.asked.lock().unwrap().clone();
    assert_eq!(asked.len(), 2_001);
    let pauses: Vec<_> = asked.windows(2).map(|w| w[1] - w[0]).collect();
    assert!(pauses.iter().all(|p| *p <= Duration::from_millis(10_050)));
    let late: Duration = pauses[20..].iter().sum::<Duration>() / (pauses.len() - 20) as u32;
    assert!((4..7).contains(&late.as_secs()), "drawn evenly below ten seconds, but the mean is {late:?}");
}

#[tokio::test(start_paused = true)]
async fn a_throttled_store_sees_fewer_at_once_but_urgent_ones_keep_their_own() {
    let inner = Scripted::new(std::iter::repeat_n(Act::SlowDown, 8));
    let settings = RetrySettings { in_flight: 8, ..Default::default() };
    let (sink, _) = stack(inner.clone(), settings);
    let packs = futures::future::join_all((0..8).map(|n| {
        let name = format!("packs/{n}");
        let sink = &sink;
        async move { sink.create(&name, Body::default()).await }
    }));
    for result in packs.await {
        result.unwrap();
    }
    let (urgent, others) = sink.in_flight();
    assert_eq!(urgent, 8);
    assert!((4..8).contains(&others), "{others}");
}

#[tokio::test(start_paused = true)]
async fn uploads_keep_to_the_rate_and_commits_do_not_wait_for_packs() {
    let inner = Scripted::new([]);
    let clock = Clock::system();
    let sink = Arc::new(Limited::new(inner, 1 << 20, |name| name.starts_with("log/"), clock.clone()));
    let began = clock.now();
    let mut packs = Vec::new();
    for n in 0..4 {
        let (sink, clock) = (sink.clone(), clock.clone());
        packs.push(crate::task::spawn(async move {
            let name = format!("packs/{n}");
            sink.create(&name, Body::from(vec![0; 4 << 20])).await.unwrap();
            clock.now()
        }));
    }
    clock.sleep(Duration::from_millis(1)).await;
    let before = clock.now();
    sink.create("log/1", Body::from(vec![0; 1 << 20])).await.unwrap();
    assert!(clock.now() - before < Duration::from_millis(100), "a commit waited for a pack");
    let mut last = began;
    for pack in packs {
        last = last.max(pack.await.unwrap());
    }
    // Three packs and the burst were paid before the last one could start; the commit came later.
    let took = last - began;
    assert!(took >= Duration::from_secs(11), "{took:?}");
    assert!(took < Duration::from_secs(13), "{took:?}");
    let before = clock.now();
    sink.create("packs/next", Body::from(vec![0; 1])).await.unwrap();
    let waited = clock.now() - before;
    assert!(waited >= Duration::from_secs(4), "the commit's bytes count too: {waited:?}");
}

#[tokio::test(start_paused = true)]
async fn decorators_hand_the_clock_of_the_store_on() {
    let (clock, inner) = (Clock::system(), Scripted::new([]));
    let settings = RetrySettings::default();
    let (sink, _) = decorate(inner, settings, Some(1 << 20), |_| true, clock.clone(), Random::seeded(7));
    assert_eq!(sink.clock(), None);
    sink.read("log/1", Range::All).await.unwrap();
    assert_eq!(sink.clock(), Some((clock.now() - Duration::from_millis(40), Timestamp(77))));
}

#[tokio::test(start_paused = true)]
async fn an_older_answer_does_not_set_the_clock_of_the_store_back() {
    let (now, clock) = (Clock::system().now(), StoreClock::default());
    clock.saw(now, Timestamp(5));
    clock.saw(now - Duration::from_secs(1), Timestamp(4));
    assert_eq!(clock.read(), Some((now, Timestamp(5))));
}
