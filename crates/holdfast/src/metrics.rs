//! All metric names, in one place. Values are read from the pipeline's gauges and the tailer's health when
//! somebody scrapes; nothing is counted twice.

use std::fmt::Write;

use holdfast_core::{
    Clock, Timestamp,
    sink::{LATENCY_MS, Meter},
};
use holdfast_pipeline::{BATCH_BYTES, Phase};

use crate::sources::Watched;

const PHASES: [Phase; 7] = [
    Phase::Starting,
    Phase::Standby,
    Phase::Claiming,
    Phase::Streaming,
    Phase::Stopping,
    Phase::Ended,
    Phase::Failed,
];

/// The Prometheus text format (version 0.0.4).
pub fn text(watched: &[Watched], meter: &Meter, clock: &Clock) -> String {
    let mut page = Page::default();
    for source in watched {
        of_source(&mut page, source, clock);
    }
    of_store(&mut page, meter);
    page.text()
}

fn of_source(page: &mut Page, source: &Watched, clock: &Clock) {
    let now = clock.now();
    let wall = clock.wall();
    let figures = source.gauges.figures(now);
    let health = source.health.read();
    let name: &[(&str, &str)] = &[("source", &source.name)];
    let age = |time: Timestamp| wall.since(time).as_secs_f64();

    page.gauge("holdfast_at_risk_seconds", "Seconds since the newest instant of which all that the source held is durable; grows while source or store are out of sight.", name, figures.at_risk.as_secs_f64());
    page.gauge(
        "holdfast_at_risk_bytes",
        "Log bytes received and not durable yet.",
        name,
        figures.at_risk_bytes as f64,
    );
    for phase in PHASES {
        let labels = [("source", source.name.as_str()), ("phase", phase.name())];
        page.gauge(
            "holdfast_phase",
            "1 for the phase that the writer is in.",
            &labels,
            f64::from(u8::from(phase == figures.phase)),
        );
    }
    for (stage, amount) in [
        ("received", figures.counts.received),
        ("sealed", figures.counts.sealed),
        ("stored", figures.counts.stored),
        ("settled", figures.counts.settled),
    ] {
        let labels = [("source", source.name.as_str()), ("stage", stage)];
        page.counter(
            "holdfast_log_bytes_total",
            "Log bytes that came this far.",
            &labels,
            amount.bytes as f64,
        );
        page.counter(
            "holdfast_log_objects_total",
            "Log objects that came this far.",
            &labels,
            amount.objects as f64,
        );
    }
    page.histogram(
        "holdfast_batch_bytes",
        "Sizes of log objects.",
        name,
        &BATCH_BYTES.map(|b| b as f64),
        &figures.batches,
        None,
    );
    page.counter(
        "holdfast_content_received_bytes_total",
        "Content that base backups handed in.",
        name,
        figures.content.received as f64,
    );
    page.counter(
        "holdfast_content_stored_bytes_total",
        "Sealed content that is durable.",
        name,
        figures.content.stored as f64,
    );
    page.gauge("holdfast_gaps", "Ranges of the stream known to be missing.", name, figures.gaps as f64);
    if let Some((began, ended)) = figures.checkpoint {
        page.gauge(
            "holdfast_base_backup_age_seconds",
            "Age of the newest finished base backup.",
            name,
            age(ended),
        );
        page.gauge(
            "holdfast_restorable_from_seconds",
            "Unix time when the newest base backup began.",
            name,
            began.micros() as f64 / 1e6,
        );
    }
    page.gauge(
        "holdfast_base_backup_interval_seconds",
        "The configured interval.",
        name,
        source.base_backup_interval.as_secs_f64(),
    );
    if let Some(time) = figures.restorable_to {
        page.gauge(
            "holdfast_restorable_to_seconds",
            "Unix time of the newest moment that can be restored.",
            name,
            time.micros() as f64 / 1e6,
        );
    }
    page.gauge(
        "holdfast_store_answers",
        "0 while this source's writer waits for the store.",
        name,
        f64::from(u8::from(figures.store_trouble.is_none())),
    );
    page.gauge(
        "holdfast_source_connected",
        "1 while the replication connection is up.",
        name,
        f64::from(u8::from(health.connected)),
    );
    page.gauge(
        "holdfast_source_waits",
        "1 while commits or a shutdown wait for us.",
        name,
        f64::from(u8::from(health.waits)),
    );
    page.gauge(
        "holdfast_source_lag_bytes",
        "Log that the server could send and we have not received.",
        name,
        health.server_end.0.saturating_sub(health.received.0) as f64,
    );
    if let Some(lag) = health.slot_lag {
        page.gauge("holdfast_slot_lag_bytes", "Log that our slot keeps at the server.", name, lag as f64);
    }
    if let Some(headroom) = health.slot_headroom {
        page.gauge(
            "holdfast_slot_headroom_bytes",
            "What the server may still write before it gives our slot up.",
            name,
            headroom as f64,
        );
    }
    page.counter(
        "holdfast_slots_lost_total",
        "Times that our slot was found lost.",
        name,
        health.slots_lost as f64,
    );
    page.counter(
        "holdfast_source_connections_total",
        "Replication connections made.",
        name,
        health.connections as f64,
    );
    page.gauge(
        "holdfast_base_backup_running",
        "1 while a base backup runs.",
        name,
        f64::from(u8::from(health.base_backup.running)),
    );
    page.gauge(
        "holdfast_base_backup_taken_bytes",
        "Bytes of files that the running or last base backup read.",
        name,
        health.base_backup.taken as f64,
    );
    let waits = [("source", health.base_backup.source_wait), ("store", health.base_backup.store_wait)];
    for (side, waited) in waits {
        page.gauge(
            "holdfast_base_backup_waited_seconds",
            "How long the running or last base backup waited for the server's bytes, and for the store to take them: the larger one is its limit.",
            &[("source", source.name.as_str()), ("for", side)],
            waited.as_secs_f64(),
        );
    }
    page.gauge(
        "holdfast_base_backup_failed",
        "1 when the last try failed.",
        name,
        f64::from(u8::from(health.base_backup.failure.is_some())),
    );
}

fn of_store(page: &mut Page, meter: &Meter) {
    for figures in meter.figures() {
        let operation = figures.operation.name();
        let labels: &[(&str, &str)] = &[("operation", operation)];
        page.counter(
            "holdfast_store_retries_total",
            "Attempts made because an earlier one failed.",
            labels,
            figures.retries as f64,
        );
        page.counter(
            "holdfast_store_slow_down_total",
            "Attempts that the store asked to slow down.",
            labels,
            figures.slow_down as f64,
        );
        page.counter(
            "holdfast_store_bytes_total",
            "Bytes of successful calls.",
            labels,
            figures.bytes as f64,
        );
        let bounds = LATENCY_MS.map(|ms| ms as f64 / 1e3);
        page.histogram(
            "holdfast_store_seconds",
            "How long attempts took.",
            labels,
            &bounds,
            &figures.classes,
            Some(figures.time.as_secs_f64()),
        );
    }
}

/// Lines by metric: the format wants all lines of one name together.
#[derive(Default)]
struct Page {
    metrics: Vec<(String, String)>,
}

impl Page {
    fn gauge(&mut self, name: &str, help: &str, labels: &[(&str, &str)], value: f64) {
        self.line(name, help, "gauge", name, labels, value);
    }
    fn counter(&mut self, name: &str, help: &str, labels: &[(&str, &str)], value: f64) {
        self.line(name, help, "counter", name, labels, value);
    }
    /// `counts` are per class, with one more class above the last bound; the format's are cumulative.
    fn histogram(
        &mut self,
        name: &str,
        help: &str,
        labels: &[(&str, &str)],
        bounds: &[f64],
        counts: &[u64],
        sum: Option<f64>,
    ) {
        let mut total = 0;
        for (index, count) in counts.iter().enumerate() {
            total += count;
            let bound = bounds.get(index).map_or("+Inf".to_owned(), f64::to_string);
            let labels: Vec<(&str, &str)> = labels.iter().copied().chain([("le", bound.as_str())]).collect();
            self.line(name, help, "histogram", &format!("{name}_bucket"), &labels, total as f64);
        }
        self.line(name, help, "histogram", &format!("{name}_count"), labels, total as f64);
        if let Some(sum) = sum {
            self.line(name, help, "histogram", &format!("{name}_sum"), labels, sum);
        }
    }

    fn line(
        &mut self,
        metric: &str,
        help: &str,
        kind: &str,
        name: &str,
        labels: &[(&str, &str)],
        value: f64,
    ) {
        let at = match self.metrics.iter().position(|(known, _)| known == metric) {
            Some(at) => at,
            None => {
                self.metrics
                    .push((metric.to_owned(), format!("# HELP {metric} {help}\n# TYPE {metric} {kind}\n")));
                self.metrics.len() - 1
            }
        };
        let Some((_, text)) = self.metrics.get_mut(at) else { return };
        // Label values are source names and words of ours: nothing in them needs escaping.
        let labels: Vec<String> = labels.iter().map(|(key, value)| format!("{key}=\"{value}\"")).collect();
        let _ = writeln!(text, "{name}{{{}}} {value}", labels.join(","));
    }

    fn text(self) -> String {
        self.metrics.into_iter().map(|(_, text)| text).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_one_name_stand_together_and_buckets_add_up() {
        let mut page = Page::default();
        page.gauge("a", "A.", &[("source", "x")], 1.0);
        page.histogram("h", "H.", &[("source", "x")], &[0.5, 1.0], &[2, 1, 4], Some(9.5));
        page.gauge("a", "A.", &[("source", "y")], 2.5);
        assert_eq!(
            page.text(),
            "# HELP a A.\n# TYPE a gauge\na{source=\"x\"} 1\na{source=\"y\"} 2.5\n\
             # HELP h H.\n# TYPE h histogram\nh_bucket{source=\"x\",le=\"0.5\"} 2\nh_bucket{source=\"x\",le=\"1\"} 3\n\
             h_bucket{source=\"x\",le=\"+Inf\"} 7\nh_count{source=\"x\"} 7\nh_sum{source=\"x\"} 9.5\n"
        );
    }
}
