//! Restores that must be refused.

use anyhow::{Result, bail};

use crate::Site;

impl Site {
    /// A restore of `main` is refused, planned or not, with this exit code and a sentence that holds all of `parts`,
    /// and writes nothing.
    pub async fn refuses(&self, wish: &[&str], code: i32, parts: &[&str]) -> Result<()> {
        let target = self.home().join("refused");
        let path = target.to_string_lossy().into_owned();
        let fixed = ["restore", "main", "--identity", "id.key", "--target", &path];
        for plan in [&[][..], &["--plan"]] {
            let arguments = fixed.iter().chain(wish).chain(plan).copied();
            let (ended, said) = self.says(arguments).await?;
            if ended != code {
                bail!("{wish:?} ended with {ended} and not with {code}: {said}");
            }
            if let Some(part) = parts.iter().find(|part| !said.contains(**part)) {
                bail!("{wish:?}: «{part}» is not in: {said}");
            }
            if target.exists() {
                bail!("{wish:?} was refused and wrote");
            }
        }
        Ok(())
    }
}
