//! A vendor's answer on its way to the client, piece by piece. Every byte passes but for the name
//! of the model; the last bytes are kept back, and the caller releases them once the debit is
//! journalled.
//!
//! It must not decide what is billed: `metered/terms.rs` does.
//!
//! Read next: `answer/json.rs`, `answer/events.rs`, `answer/media.rs` (the three forms).

mod events;
mod json;
mod media;

use super::table::MeteredForm;
use super::terms::{MeteredReport, MeteredTerms};
use crate::usage::MeteredUsage;
use crate::vendor_response::UpstreamError;
use events::EventsAnswer;
use json::JsonAnswer;
use media::MediaAnswer;

/// An answer that is being read.
#[derive(Debug)]
pub struct MeteredAnswer {
    terms: MeteredTerms,
    form: FormReader,
}

#[derive(Debug)]
enum FormReader {
    Json(Box<JsonAnswer>),
    Events(Box<EventsAnswer>),
    Media(MediaAnswer),
}

impl MeteredAnswer {
    /// Creates the reader of an answer of the model that the catalog calls `model`. `event_bytes`:
    /// the largest event.
    pub fn new(terms: MeteredTerms, form: MeteredForm, model: &str, event_bytes: usize) -> Self {
        let form = match form {
            MeteredForm::Json => FormReader::Json(Box::new(JsonAnswer::new(terms, model))),
            MeteredForm::Events => {
                FormReader::Events(Box::new(EventsAnswer::new(terms, event_bytes)))
            }
            MeteredForm::Media => FormReader::Media(MediaAnswer::default()),
        };
        Self { terms, form }
    }

    /// The form as which it is read.
    pub fn form(&self) -> MeteredForm {
        match &self.form {
            FormReader::Json(_) => MeteredForm::Json,
            FormReader::Events(_) => MeteredForm::Events,
            FormReader::Media(_) => MeteredForm::Media,
        }
    }

    /// Whether its pieces leave as they come, because a client plays or shows them at once.
    pub fn passes_at_once(&self) -> bool {
        match &self.form {
            FormReader::Json(_) => false,
            FormReader::Events(_) => true,
            FormReader::Media(_) => self.terms.endpoint.plays(),
        }
    }

    /// Reads a piece of the body, and appends to `out` what the client may have of it. `end`: no
    /// more follows. Returns the usage of the complete answer, whose last bytes
    /// [`take_last`](Self::take_last) returns.
    ///
    /// # Errors
    /// Returns an error if the answer reports one, ends too early, has no content, or is not of its
    /// form.
    pub fn push(
        &mut self,
        piece: &[u8],
        end: bool,
        out: &mut Vec<u8>,
    ) -> Result<Option<MeteredUsage>, UpstreamError> {
        let report = match &mut self.form {
            FormReader::Json(answer) => {
                answer.push(piece, out)?;
                match answer.is_complete() {
                    true => Some(answer.report()?),
                    false if end => return Err(UpstreamError::Cut),
                    false => None,
                }
            }
            FormReader::Events(answer) => answer.push(piece, end, out)?,
            FormReader::Media(answer) => match answer.push(piece, end, out)? {
                // The words of silence are none; its sound is not.
                Some(_) if self.terms.endpoint.plays() && !answer.has_bytes() => {
                    return Err(UpstreamError::Empty);
                }
                report => report,
            },
        };
        Ok(report.map(|report: MeteredReport| self.terms.bill(&report)))
    }

    /// Returns the bytes that were kept back.
    pub fn take_last(&mut self) -> Vec<u8> {
        match &mut self.form {
            FormReader::Json(_) => vec![JsonAnswer::LAST],
            FormReader::Events(answer) => answer.take_last(),
            FormReader::Media(answer) => answer.take_last(),
        }
    }
}
