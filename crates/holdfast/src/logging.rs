//! Logs go to stderr, as text or JSON; `HOLDFAST_LOG` filters them (`info` by default).

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::config::LogFormat;

pub fn start(format: LogFormat) {
    let filter = EnvFilter::try_from_env("HOLDFAST_LOG").unwrap_or_else(|_| {
        EnvFilter::new("info,aws_config=warn,aws_smithy_runtime=error,hyper=warn,rustls=warn")
    });
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    // A second start (in tests) changes nothing.
    let _ = match format {
        LogFormat::Text => builder.with_target(false).try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
}
