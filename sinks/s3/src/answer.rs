//! What a failed request means: which act, and the sentence for a person.

use std::{error::Error as StdError, fmt};

use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use holdfast_core::{Act, Error};

/// What was asked, for the sentence.
#[derive(Clone, Debug)]
pub struct Ask {
    /// «create of …».
    pub what: String,
    /// The right it needs, by AWS's name.
    pub right: &'static str,
}

/// A failed request.
#[derive(Debug)]
pub struct Failure {
    pub status: Option<u16>,
    pub code: Option<String>,
    /// The store did not like who we are: newer credentials may help at once.
    pub login: bool,
    pub error: Error,
}

impl Failure {
    pub fn is(&self, status: u16, code: &str) -> bool {
        match &self.code {
            Some(found) => found == code,
            None => self.status == Some(status),
        }
    }

    /// The store does not know this request, or this header of it.
    pub fn unsupported(&self) -> bool {
        matches!(self.status, Some(405 | 501))
            || matches!(self.code.as_deref(), Some("NotImplemented" | "MethodNotAllowed"))
    }

    /// The store refused the request as such; what it disliked is not always said.
    pub fn refused(&self) -> bool {
        self.unsupported() || matches!(self.status, Some(400))
    }

    pub fn stalled(ask: &Ask) -> Self {
        Self {
            status: None,
            code: None,
            login: false,
            error: Error::retry(format!(
                "{}: no progress within the deadline; the store or the way to it hangs",
                ask.what
            )),
        }
    }
}

/// An error that came with a status of success.
#[derive(Debug)]
pub struct ErrorInside {
    code: String,
    message: String,
}

impl ErrorInside {
    pub fn found(body: &[u8]) -> Option<Self> {
        let head = body.get(..body.len().min(4096))?;
        let text = String::from_utf8_lossy(head);
        if !text.contains("<Error>") && !text.contains("<Error ") {
            return None;
        }
        let tag = |name: &str| {
            let (_, rest) = text.split_once(&format!("<{name}>"))?;
            rest.split_once("</").map(|(value, _)| value.to_owned())
        };
        Some(Self { code: tag("Code").unwrap_or_default(), message: tag("Message").unwrap_or_default() })
    }
}

impl fmt::Display for ErrorInside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the answer said 200 but held the error {}", self.code)
    }
}

impl StdError for ErrorInside {}

impl Ask {
    pub fn judge<E>(&self, error: SdkError<E, HttpResponse>) -> Failure
    where
        E: ProvideErrorMetadata + StdError + Send + Sync + 'static,
    {
        let status = error.raw_response().map(|raw| raw.status().as_u16());
        if let Some(inside) = find::<ErrorInside>(&error) {
            let (code, message) = (inside.code.clone(), inside.message.clone());
            return self.answered(None, Some(code), Some(message), Some(Box::new(error)));
        }
        if let SdkError::ServiceError(answer) = &error {
            let code = answer.err().code().map(str::to_owned);
            let message = answer.err().message().map(str::to_owned);
            return self.answered(status, code, message, None);
        }
        if let (SdkError::ResponseError(_), Some(status)) = (&error, status)
            && status >= 300
        {
            return self.answered(Some(status), None, None, Some(Box::new(error)));
        }
        let (act, advice) = unanswered(&error);
        let what = format!("{} failed{advice}", self.what);
        Failure { status: None, code: None, login: false, error: Error::new(act, what).because(error) }
    }

    /// An answer of the store that is an error.
    pub fn answered(
        &self,
        status: Option<u16>,
        code: Option<String>,
        message: Option<String>,
        cause: Option<Box<dyn StdError + Send + Sync>>,
    ) -> Failure {
        let (act, advice) = meaning(status, code.as_deref(), self.right);
        let shown = match (&code, status) {
            (Some(code), _) if !code.is_empty() => code.clone(),
            (_, Some(status)) => format!("status {status}"),
            _ => "an error".to_owned(),
        };
        let said =
            message.filter(|said| !said.is_empty()).map_or(String::new(), |said| format!(" («{said}»)"));
        let mut error = Error::new(act, format!("{}: the store answered {shown}{said}{advice}", self.what));
        if let Some(cause) = cause {
            error = error.because(cause);
        }
        let login = matches!(
            code.as_deref(),
            Some(
                "ExpiredToken"
                    | "ExpiredTokenException"
                    | "TokenRefreshRequired"
                    | "InvalidToken"
                    | "InvalidAccessKeyId"
                    | "SignatureDoesNotMatch"
            )
        );
        Failure { status, code, login, error }
    }
}

/// Act and advice for an answer. Codes first: statuses differ between stores more than codes do.
fn meaning(status: Option<u16>, code: Option<&str>, right: &str) -> (Act, String) {
    let plain = |act, advice: &str| (act, advice.to_owned());
    match code.unwrap_or_default() {
        "SlowDown"
        | "SlowDownRead"
        | "SlowDownWrite"
        | "ServiceUnavailable"
        | "Throttling"
        | "ThrottlingException"
        | "TooManyRequests"
        | "TooManyRequestsException"
        | "RequestLimitExceeded"
        | "BandwidthLimitExceeded" => return plain(Act::SlowDown, ""),
        "NoSuchBucket" => {
            return plain(Act::Configure, "; create the bucket, or correct `bucket`, `endpoint` or `region`");
        }
        "AccessDenied" | "AllAccessDisabled" | "Forbidden" => {
            return (
                Act::Configure,
                format!("; grant {right} to these credentials for this bucket and prefix"),
            );
        }
        "ExpiredToken" | "ExpiredTokenException" | "TokenRefreshRequired" => {
            return plain(
                Act::Retry,
                "; the temporary credentials have expired: renew them, they are read again",
            );
        }
        "InvalidAccessKeyId" | "SignatureDoesNotMatch" | "InvalidToken" => {
            return plain(
                Act::Configure,
                "; correct the access key and its secret (files are read again by themselves)",
            );
        }
        "RequestTimeTooSkewed" => {
            return plain(Act::Configure, "; this host's clock is wrong: let NTP set it");
        }
        "AuthorizationHeaderMalformed"
        | "PermanentRedirect"
        | "TemporaryRedirect"
        | "IllegalLocationConstraintException" => {
            return plain(
                Act::Configure,
                "; the bucket lies in another region: correct `region` or `endpoint`",
            );
        }
        "QuotaExceeded" | "XMinioStorageFull" | "InsufficientStorage" | "StorageFull" => {
            return plain(
                Act::Retry,
                "; the store is full: enlarge it or its quota, writing goes on by itself",
            );
        }
        "RequestTimeout"
        | "InternalError"
        | "OperationAborted"
        | "ConditionalRequestConflict"
        | "BadDigest"
        | "IncompleteBody"
        | "InvalidDigest"
        | "XAmzContentSHA256Mismatch" => return plain(Act::Retry, ""),
        "InvalidStorageClass" => return plain(Act::Configure, "; correct `storage_class`"),
        "NotImplemented" | "MethodNotAllowed" => {
            return plain(Act::Configure, "; this store cannot do what holdfast needs: use another one");
        }
        _ => {}
    }
    match status {
        Some(429 | 503) => plain(Act::SlowDown, ""),
        Some(507) => plain(Act::Retry, "; the store is full: enlarge it, writing goes on by itself"),
        Some(401 | 403) => {
            (Act::Configure, format!("; grant {right} to these credentials for this bucket and prefix"))
        }
        Some(404) => plain(Act::Configure, "; is there an S3 store behind `endpoint`, and the bucket in it?"),
        Some(300..400) => plain(Act::Configure, "; correct `region` or `endpoint`"),
        Some(408 | 409 | 412 | 425) | Some(500..) => plain(Act::Retry, ""),
        Some(400..500) => {
            plain(Act::Configure, "; the store does not accept this request: see its documentation")
        }
        _ => plain(Act::Retry, ""),
    }
}

/// Act and advice where no answer came that could be read.
fn unanswered<E>(error: &SdkError<E, HttpResponse>) -> (Act, &'static str)
where
    E: StdError + 'static,
{
    if let Some(credentials) = find::<CredentialsError>(error) {
        return match credentials {
            CredentialsError::CredentialsNotLoaded(_) => (
                Act::Configure,
                ": there are no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name files that hold them",
            ),
            CredentialsError::InvalidConfiguration(_) => (
                Act::Configure,
                ": the credentials cannot be read; correct the profile or the files that hold them",
            ),
            _ => (Act::Retry, ": the place that gives out credentials does not answer"),
        };
    }
    let mut chain = String::new();
    let mut next: Option<&dyn StdError> = Some(error);
    while let Some(cause) = next {
        chain.push_str(&cause.to_string());
        next = cause.source();
    }
    if chain.contains("certificate") || chain.contains("UnknownIssuer") {
        return (
            Act::Configure,
            ": the store's certificate is not trusted; name its authority in `ca_file`, or correct `endpoint`",
        );
    }
    // What rustls makes of a first answer that is no TLS.
    if chain.contains("InvalidContentType") {
        return (
            Act::Configure,
            ": what answers there speaks no TLS; correct `endpoint` (http:// or another port)",
        );
    }
    match error {
        SdkError::ConstructionFailure(_) => {
            (Act::Configure, ": the request could not be made; correct `endpoint`, `bucket` or `prefix`")
        }
        SdkError::DispatchFailure(dispatch) if dispatch.is_user() => {
            (Act::Configure, ": the request could not be sent; correct `endpoint` or `proxy`")
        }
        SdkError::DispatchFailure(_) | SdkError::TimeoutError(_) => {
            (Act::Retry, ": the store was not reached, or its answer was lost")
        }
        _ => (Act::Retry, ": the store's answer could not be read"),
    }
}

fn find<'a, T: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a T> {
    let mut next = Some(error);
    while let Some(cause) = next {
        if let Some(found) = cause.downcast_ref::<T>() {
            return Some(found);
        }
        next = cause.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_get_the_act_that_helps() {
        let act = |status, code| meaning(Some(status), code, "s3:PutObject").0;
        assert_eq!(act(503, Some("SlowDown")), Act::SlowDown);
        assert_eq!(act(503, None), Act::SlowDown);
        assert_eq!(act(429, None), Act::SlowDown);
        assert_eq!(act(500, Some("InternalError")), Act::Retry);
        assert_eq!(act(502, None), Act::Retry);
        assert_eq!(act(409, Some("ConditionalRequestConflict")), Act::Retry);
        assert_eq!(act(400, Some("RequestTimeout")), Act::Retry);
        assert_eq!(act(400, Some("BadDigest")), Act::Retry);
        assert_eq!(act(400, Some("ExpiredToken")), Act::Retry);
        assert_eq!(act(507, None), Act::Retry);
        assert_eq!(act(404, Some("NoSuchBucket")), Act::Configure);
        assert_eq!(act(301, Some("PermanentRedirect")), Act::Configure);
        assert_eq!(act(400, Some("Whatever")), Act::Configure);
        let (act, advice) = meaning(Some(403), Some("AccessDenied"), "s3:PutObject");
        assert!(act == Act::Configure && advice.contains("s3:PutObject"), "{advice}");
    }

    #[test]
    fn an_error_inside_a_success_is_found() {
        let body = b"<?xml version=\"1.0\"?>\n<Error><Code>SlowDown</Code><Message>later</Message></Error>";
        let inside = ErrorInside::found(body).unwrap();
        assert_eq!((inside.code.as_str(), inside.message.as_str()), ("SlowDown", "later"));
        assert!(ErrorInside::found(b"").is_none());
        assert!(ErrorInside::found(b"<ListBucketResult/>").is_none());
    }
}
