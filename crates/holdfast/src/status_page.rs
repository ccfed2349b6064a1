//! `/metrics`, `/healthz`, `/readyz` and a page for people.

use std::{fmt::Write, sync::Arc};

use axum::{Router, extract::State, http::StatusCode, response::Html, routing::get};
use holdfast_core::{
    Clock, Error, Result,
    sink::Meter,
    task,
    text::{show_duration, show_size},
};
use holdfast_pipeline::{Figures, Phase};
use tokio::net::TcpListener;

use crate::{metrics, sources::Watched};

struct Site {
    watched: Vec<Watched>,
    meter: Arc<Meter>,
    clock: Clock,
}

pub async fn serve(
    address: &str,
    watched: Vec<Watched>,
    meter: Arc<Meter>,
    clock: Clock,
) -> Result<task::Task<()>> {
    let listener = TcpListener::bind(address).await.map_err(|cause| {
        Error::configure(format!("listen = \"{address}\" in [process] cannot be used")).because(cause)
    })?;
    let router = Router::new()
        .route("/", get(page))
        .route("/metrics", get(scrape))
        .route("/healthz", get(|| async { "alive\n" }))
        .route("/readyz", get(ready))
        .with_state(Arc::new(Site { watched, meter, clock }));
    Ok(task::spawn(async move {
        if let Err(cause) = axum::serve(listener, router).await {
            tracing::error!(%cause, "the metrics address is not served any more");
        }
    }))
}

async fn scrape(State(site): State<Arc<Site>>) -> ([(&'static str, &'static str); 1], String) {
    let kind = [("content-type", "text/plain; version=0.0.4; charset=utf-8")];
    (kind, metrics::text(&site.watched, &site.meter, &site.clock))
}

/// Ready: every source is followed, or stands by for another writer, and nothing is in the way of that.
async fn ready(State(site): State<Arc<Site>>) -> (StatusCode, String) {
    let mut text = String::new();
    let mut ready = true;
    for source in &site.watched {
        let figures = source.gauges.figures(site.clock.now());
        let trouble = figures.store_trouble.is_some() || figures.source_trouble.is_some();
        ready &= matches!(figures.phase, Phase::Streaming | Phase::Standby) && !trouble;
        let _ = writeln!(text, "{} {} {}", source.name, figures.phase.name(), said(&figures).join("; "));
    }
    (if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, text)
}

/// What a pipeline has to say, most of the time nothing.
fn said(figures: &Figures) -> Vec<String> {
    let said = [Some(&figures.sentence), figures.store_trouble.as_ref(), figures.source_trouble.as_ref()];
    said.into_iter().flatten().filter(|text| !text.is_empty()).cloned().collect()
}

async fn page(State(site): State<Arc<Site>>) -> Html<String> {
    let mut rows = String::new();
    for source in &site.watched {
        let figures = source.gauges.figures(site.clock.now());
        let mut said = said(&figures);
        said.push(source.health.read().notice.clone());
        let trouble: Vec<String> =
            said.iter().filter(|text| !text.is_empty()).map(|text| escape(text)).collect();
        let _ = write!(
            rows,
            "<tr><td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}",
            escape(&source.name),
            figures.phase.name(),
            show_duration(figures.at_risk),
            show_size(figures.at_risk_bytes),
            figures.restorable_to.map_or_else(|| "nothing yet".to_owned(), |time| time.to_string()),
            figures.checkpoint.map_or_else(|| "none yet".to_owned(), |(_, ended)| ended.to_string()),
            trouble.join("<br>"),
        );
    }
    Html(format!(
        "<!doctype html><title>holdfast</title><meta http-equiv=refresh content=5>\
         <style>body{{font:15px sans-serif;margin:2em}}td,th{{padding:.3em 1em;text-align:left;border-bottom:1px solid #ccc}}</style>\
         <h1>holdfast</h1><table><tr><th>source<th>phase<th>at risk<th>bytes<th>restorable to<th>base backup<th>notice{rows}</table>"
    ))
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
