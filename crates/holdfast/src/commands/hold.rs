//! `hold`: keeps what is there from being removed while somebody works with it by other means.

use holdfast_core::{Clock, Error, Random, Result, text};
use holdfast_repo::{
    hold::{Holds, Placed},
    record::Hold as Record,
};

use crate::{cli::Hold, config::Config, output, reading::Reader};

pub async fn run(args: &Hold, config: &Config, json: bool) -> Result<()> {
    let keep = text::parse_duration(&args.keep)?;
    let (clock, random) = (Clock::system(), Random::system());
    let opened = Reader::open(config, &args.identity).await?.source(config, &args.name).await?;
    let holds = Holds {
        sink: opened.store.sink.clone(),
        source: opened.source.id,
        source_key: opened.source.key.clone(),
    };
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let record = Record { host, purpose: "holdfast hold".to_owned(), written: clock.wall() };
    let held = match holds.place(record, &clock, &random).await? {
        Placed::Held(holder) => holder.keep(),
        Placed::Unheld(error) => return Err(error),
    };
    let until = clock.wall().plus(keep);
    if json {
        output::json(&serde_json::json!({ "until": until.to_string() }))?;
    } else {
        output::line(format!("held until {until}, or until this command is stopped"));
    }
    tokio::select! {
        () = clock.sleep(keep) => {}
        signal = tokio::signal::ctrl_c() => {
            signal.map_err(|cause| Error::retry("signals cannot be listened to").because(cause))?;
        }
    }
    held.check()?;
    held.release().await
}
