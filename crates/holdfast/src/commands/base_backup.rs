//! `base-backup`: asks the running process.

use holdfast_core::Result;

use crate::{cli::One, config::Config, control, output};

pub async fn run(args: &One, config: &Config) -> Result<()> {
    config.source(&args.name)?;
    let answer = control::order(&config.process.state_dir, &args.name, control::BASE_BACKUP).await?;
    output::line(answer);
    Ok(())
}
