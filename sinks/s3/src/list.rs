//! Pages of names. The order is checked: what holds for S3 does not hold for every store that speaks it, and a
//! page out of order would hide objects from whoever asks for what comes after the last name.

use futures::future::BoxFuture;
use holdfast_core::{
    Error, Result, Timestamp,
    sink::{Entry, Page, is_name_byte},
};

use crate::{
    Inner,
    answer::{Ask, Failure},
};

/// No store gives more in one answer.
const PAGE_MAX: usize = 1000;

impl Inner {
    pub async fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Page> {
        if limit == 0 {
            return Err(Error::bug("a page of no names was asked for"));
        }
        let mut after = after.map(|after| self.key(after));
        loop {
            let ask = self.ask("list", prefix, "s3:ListBucket");
            let from = after.clone();
            let send =
                |_| -> BoxFuture<'_, _> { Box::pin(self.send_list(&ask, prefix, from.clone(), limit)) };
            let (page, last) = self.call(&ask, 1 << 20, send).await.map_err(|failure| failure.error)?;
            // A page of nothing but folder markers says nothing yet.
            match last {
                Some(last) if page.entries.is_empty() && page.more => after = Some(last),
                _ => return Ok(page),
            }
        }
    }

    /// Asks from just before `after`, so that a store which walks folders (SeaweedFS) does not pass over what lies
    /// in the folder of that name; `after` itself is dropped here.
    ///
    /// The page and the last key in it, whatever it names.
    async fn send_list(
        &self,
        ask: &Ask,
        prefix: &str,
        after: Option<String>,
        limit: usize,
    ) -> Result<(Page, Option<String>), Failure> {
        let wanted = i32::try_from(limit.saturating_add(1).min(PAGE_MAX)).unwrap_or(1);
        let key = self.key(prefix);
        let output = self
            .client
            .list_objects_v2()
            .bucket(&self.settings.bucket)
            .set_prefix(Some(key.clone()).filter(|key| !key.is_empty()))
            .set_start_after(after.as_deref().map(just_before))
            .max_keys(wanted)
            .send()
            .await
            .map_err(|error| ask.judge(error))?;
        let mut page = Page { entries: Vec::new(), more: output.is_truncated().unwrap_or(false) };
        let mut last = after.clone();
        for object in output.contents() {
            let found = object.key().unwrap_or_default();
            if after.as_deref() == Some(found) {
                continue;
            }
            if last.as_deref().is_some_and(|last| last >= found) || !found.starts_with(&key) {
                return Err(self.disorder(ask, found));
            }
            last = Some(found.to_owned());
            let name = found.strip_prefix(&self.root).unwrap_or(found);
            // Folder markers of other tools.
            if name.ends_with('/') || name.is_empty() {
                continue;
            }
            let modified = object.last_modified().map_or(0, |at| {
                at.secs().saturating_mul(1_000_000).saturating_add(i64::from(at.subsec_nanos() / 1000))
            });
            let size = object.size().and_then(|size| u64::try_from(size).ok()).unwrap_or(0);
            page.entries.push(Entry { name: name.to_owned(), size, modified: Timestamp(modified) });
        }
        if page.entries.len() > limit {
            page.entries.truncate(limit);
            page.more = true;
        }
        Ok((page, last))
    }

    fn disorder(&self, ask: &Ask, found: &str) -> Failure {
        let error = Error::configure(format!(
            "{}: the store lists «{found}» out of order, so objects could be overlooked: holdfast needs a store that lists in the order of bytes (S3 directory buckets do not)",
            ask.what
        ));
        Failure { status: None, code: None, login: false, error }
    }
}

/// A text below `key` and above every key of ours that is below it: «~» comes after all that a name may hold.
fn just_before(key: &str) -> String {
    match key.as_bytes().split_last() {
        Some((last, rest)) if is_name_byte(*last) => {
            let before = char::from(last.saturating_sub(1));
            format!("{}{before}~", String::from_utf8_lossy(rest))
        }
        _ => key.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_ours_lies_between() {
        for key in ["l/a", "l/0", "l/A", "l/10", "l/a-", "l/a.", "l/_", "z"] {
            let before = just_before(key);
            assert!(before.as_str() < key, "{before} {key}");
            let shorter = &key[..key.len() - 1];
            for byte in (0..=127_u8).filter(|byte| is_name_byte(*byte) || *byte == b'/') {
                let near = format!("{shorter}{}", char::from(byte));
                for near in [near.clone(), format!("{near}/zz"), format!("{near}zz"), format!("{near}-")] {
                    let inside = before < near && near.as_str() < key;
                    assert!(!inside, "{near} lies between {before} and {key}");
                }
            }
        }
        assert_eq!(just_before("l/a/"), "l/a/");
    }
}
