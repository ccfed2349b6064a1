//! What is printed: a table for people, the same rows as JSON for programs, bars only on a terminal.

use std::{io::IsTerminal, sync::Mutex};

use holdfast_core::{Error, Progress, Result};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

/// Prints to stdout; a closed pipe is no error.
#[allow(clippy::print_stdout)]
pub fn line(text: impl AsRef<str>) {
    use std::io::Write;
    let _ = writeln!(std::io::stdout(), "{}", text.as_ref());
}

pub fn json(value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|cause| Error::bug("the answer cannot be written as JSON").because(cause))?;
    line(text);
    Ok(())
}

/// Left-aligned columns.
pub fn table(head: &[&str], rows: &[Vec<String>]) {
    let mut widths: Vec<usize> = head.iter().map(|cell| cell.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let print = |cells: &mut dyn Iterator<Item = &str>| {
        let text: Vec<String> = cells.zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        line(text.join("  ").trim_end());
    };
    print(&mut head.iter().copied());
    for row in rows {
        print(&mut row.iter().map(String::as_str));
    }
}

/// A bar on a terminal, lines elsewhere. Goes to stderr, so that stdout stays clean.
pub struct Bar {
    bar: ProgressBar,
    last: Mutex<String>,
}

impl Bar {
    pub fn new() -> Self {
        let bar = if std::io::stderr().is_terminal() {
            ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr_with_hz(5))
        } else {
            ProgressBar::hidden()
        };
        let style = "{msg:20} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
        bar.set_style(ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self { bar, last: Mutex::new(String::new()) }
    }
}

impl Progress for Bar {
    fn total(&self, bytes: u64) {
        self.bar.set_length(bytes);
    }
    fn done(&self, bytes: u64) {
        self.bar.inc(bytes);
    }
    fn say(&self, line: &str) {
        let mut last = self.last.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if *last == line {
            return;
        }
        *last = line.to_owned();
        if self.bar.is_hidden() {
            eprintln!("{line}");
        } else {
            self.bar.println(line);
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
