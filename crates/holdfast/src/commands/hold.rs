//! `hold`: keeps what is there from being removed while somebody works with it by other means.

use holdfast_core::{Clock, Error, Result, text};
use holdfast_repo::hold::Placed;

use crate::{bounds, cli::Hold, config::Config, holding, output, reading::Reader};

pub async fn run(args: &Hold, config: &Config, json: bool) -> Result<()> {
    let keep = text::parse_duration(&args.keep)?;
    bounds::keep(keep)?;
    let clock = Clock::system();
    let opened = Reader::open(config, &args.identity).await?.source(config, &args.name).await?;
    let held = match holding::place(&opened, "holdfast hold").await? {
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
    holding::release(held).await;
    Ok(())
}
