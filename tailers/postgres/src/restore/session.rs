//! What a restored server's `restore_command` needs to know, in one file of mode 0600 beside the journal. It holds
//! the keys that open this restore's data, never an identity; recovery's end removes it.

use std::{fs, path::Path};

use holdfast_core::{Error, Moment, Result, Span, View};
use serde::{Deserialize, Serialize};

use super::{
    files::give,
    journal::{failed, replace},
    prefetch::recovered,
    target::{OWN_FOLDER, Target},
};
use crate::records::Base;

const NAME: &str = "session.json";

#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Session {
    pub version: u32,
    /// The log that is served, one span a timeline.
    pub path: Vec<Span>,
    pub segment_size: u32,
    pub system_identifier: u64,
    /// As `server_version_num`.
    pub server_version: u32,
    /// Errors are answered so that the server asks again instead of stopping.
    pub standby: bool,
    /// Serves whatever the repository gets later, too.
    pub follows: bool,
    /// The program's own: where the repository is and what opens it.
    pub blob: String,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("path", &self.path)
            .field("standby", &self.standby)
            .finish_non_exhaustive()
    }
}

impl Session {
    pub fn new(
        moment: &Moment,
        target: &Target,
        follows: bool,
        view: &dyn View,
        blob: String,
    ) -> Result<Self> {
        let checkpoints = &view.catalog().checkpoints;
        let checkpoint = checkpoints.iter().find(|held| held.id == moment.checkpoint).ok_or_else(|| {
            Error::unreachable(format!(
                "the base backup {} is not in the repository any more",
                moment.checkpoint
            ))
        })?;
        let base = Base::decode(&checkpoint.body)?;
        Ok(Self {
            version: 1,
            path: moment.path.clone(),
            segment_size: base.segment_size,
            system_identifier: base.system_identifier,
            server_version: base.version,
            standby: target.standby,
            follows: follows && target.standby,
            blob,
        })
    }

    /// Leaves the session in the target, after its files were restored; not where recovery has ended already.
    pub fn save(&self, target: &Target) -> Result<()> {
        if recovered(&target.data) {
            return Ok(());
        }
        let text = serde_json::to_vec(self)
            .map_err(|cause| Error::bug("a session could not be encoded").because(cause))?;
        let path = target.data.join(OWN_FOLDER).join(NAME);
        replace(&path, &text, 0o600)?;
        give(&path, target.owner).map_err(|cause| failed("given away", &path, cause))
    }

    /// Reads the session in our folder of a target.
    pub fn load(own: &Path) -> Result<Self> {
        let path = own.join(NAME);
        let text = fs::read(&path).map_err(|cause| failed("read", &path, cause))?;
        let session: Self = serde_json::from_slice(&text).map_err(|cause| {
            Error::configure(format!(
                "{} is no session of this holdfast: run the restore again",
                path.display()
            ))
            .because(cause)
        })?;
        if session.version != 1 {
            return Err(Error::configure(format!("{} was written by a newer holdfast", path.display())));
        }
        Ok(session)
    }

    pub fn remove(own: &Path) {
        fs::remove_file(own.join(NAME)).ok();
    }
}
