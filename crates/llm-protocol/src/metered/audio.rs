//! The length of audio, by its container.

use super::content::AudioLength;
use lofty::config::ParseOptions;
use lofty::file::{AudioFile, FileType};
use lofty::probe::Probe;
use std::io::Cursor;

/// Reads the length of a file, rounded up to whole seconds. That of a WAV file is exact: its
/// decoder goes by the same rate.
pub(super) fn length(file: &[u8]) -> AudioLength {
    let probe = Probe::new(Cursor::new(file)).options(ParseOptions::new().read_tags(false));
    let Ok(probe) = probe.guess_file_type() else {
        return AudioLength::default();
    };
    let is_wav = probe.file_type() == Some(FileType::Wav);
    let Ok(file) = probe.read() else {
        return AudioLength::default();
    };
    let length = file.properties().duration();
    let seconds = length
        .as_secs()
        .saturating_add((length.subsec_nanos() > 0).into());
    AudioLength {
        seconds: (seconds > 0).then_some(seconds),
        is_exact: is_wav && seconds > 0,
    }
}
