//! Removes output limits under another vendor's name, or in a vendor's own options.
//!
//! A vendor that applies such a limit could generate more than was reserved. This file must not
//! change the surface's own limits.
//!
//! Read next: `request/extensions.rs`, which has the names.

use super::remover::ForeignFieldRemover;
use crate::Protocol;
use crate::json::JsonValue;
use crate::request::extensions::Extension;
use crate::request::vendor_state;

impl<'a> ForeignFieldRemover<'a> {
    /// Removes output limits that the vendor might apply instead of the surface's.
    pub(super) fn remove_duplicate_limits(&mut self, root: JsonValue<'a>, protocol: Protocol) {
        for (key, value) in root.members() {
            match Extension::from_top_level(protocol, &key.value()) {
                Some(Extension::OutputLimit(name)) => {
                    if !value.is_null() {
                        self.warnings.dropped(name);
                    }
                    self.gone.push(self.member_span(&key, value));
                }
                Some(Extension::Options(object)) => self.remove_option_limits(value, object),
                _ => {}
            }
        }
    }

    /// Removes the limits in a vendor's own options, at any depth. `object` is the name of the
    /// outermost member.
    fn remove_option_limits(&mut self, value: JsonValue<'a>, object: &'static str) {
        for item in value.items() {
            self.remove_option_limits(item, object);
        }
        for (key, value) in value.members() {
            let name = key.value();
            match Extension::from_options(&name) {
                Some(Extension::OutputLimit(name)) => {
                    if !value.is_null() {
                        self.warnings.dropped(format_args!("{object}.{name}"));
                    }
                    self.gone.push(self.member_span(&key, value));
                }
                _ if vendor_state::is_client_data(&name) && name != "parameters" => {}
                _ => self.remove_option_limits(value, object),
            }
        }
    }
}
