//! Defines the navigation as a table with one line per entry, in display order.
//!
//! Account holders and operators have a mode each, with entries of its own. The path of a page
//! decides which mode it belongs to and which entry is current. This file must not depend on a
//! page.

use crate::optional_parts::is_below;
use accounts::MemberAction::{self, ManageMoney, SeeUsage, UseKeys};
use accounts::OrganisationRole;

pub struct MenuEntry {
    pub text: &'static str,
    pub path: &'static str,
    /// Name of the entry's icon in `style.css`.
    pub icon: &'static str,
    /// Whether the gateway offers it.
    is_offered: fn(MenuReader) -> bool,
    /// What the reader must be allowed to do in the account that is shown.
    needs: Option<MemberAction>,
}

/// For whom a menu is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MenuReader {
    pub is_operator: bool,
    /// Role in the account that is shown.
    pub role: OrganisationRole,
    pub shop: ShopParts,
    /// The gateway has organisations.
    pub has_organisations: bool,
}

impl MenuReader {
    const PUBLIC: Self = Self {
        is_operator: false,
        role: OrganisationRole::Owner,
        shop: ShopParts::NONE,
        has_organisations: false,
    };
}

/// What the gateway offers to get credits by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShopParts {
    /// Account holders can buy credits.
    pub sells: bool,
    /// Account holders can redeem codes.
    pub takes_codes: bool,
}

impl ShopParts {
    pub const NONE: Self = Self {
        sells: false,
        takes_codes: false,
    };

    /// Whether account holders have the page of credits.
    pub fn has_any(self) -> bool {
        self.sells || self.takes_codes
    }
}

/// Entries that belong together. Only some groups have a title.
pub struct MenuGroup {
    pub title: Option<&'static str>,
    pub entries: &'static [MenuEntry],
}

/// A mode of the navigation between which an operator can switch.
pub struct MenuMode {
    pub text: &'static str,
    pub path: &'static str,
}

pub struct Menu {
    pub groups: &'static [MenuGroup],
    /// Modes of the user; empty if there is only one.
    pub modes: &'static [MenuMode],
    /// First page of the mode, to which the product's name links.
    pub home: &'static str,
    /// Path of the current entry.
    current: Option<&'static str>,
    reader: MenuReader,
}

const fn entry(text: &'static str, path: &'static str, icon: &'static str) -> MenuEntry {
    MenuEntry {
        text,
        path,
        icon,
        is_offered: |_| true,
        needs: None,
    }
}

/// An entry for those who may do this in the account that is shown.
const fn entry_for(
    needs: MemberAction,
    text: &'static str,
    path: &'static str,
    icon: &'static str,
) -> MenuEntry {
    MenuEntry {
        needs: Some(needs),
        ..entry(text, path, icon)
    }
}

const PUBLIC: &[MenuGroup] = &[MenuGroup {
    title: None,
    entries: &[
        entry("Docs", "/docs", "docs"),
        entry("Dashboard", "/dashboard", "overview"),
    ],
}];

const USE: MenuGroup = MenuGroup {
    title: Some("Use"),
    entries: &[
        entry_for(UseKeys, "Set up", "/dashboard/setup", "setup"),
        entry_for(UseKeys, "Keys", "/dashboard/keys", "keys"),
        entry_for(UseKeys, "Playground", "/dashboard/playground", "playground"),
    ],
};

const WATCH: MenuGroup = MenuGroup {
    title: Some("Watch"),
    entries: &[
        entry_for(SeeUsage, "Overview", "/dashboard", "overview"),
        entry("Activity", "/dashboard/activity", "activity"),
        entry_for(
            SeeUsage,
            "Conversations",
            "/dashboard/conversations",
            "conversations",
        ),
    ],
};

const MONEY: MenuGroup = MenuGroup {
    title: Some("Money"),
    entries: &[
        MenuEntry {
            is_offered: |reader| reader.shop.has_any(),
            ..entry_for(ManageMoney, "Credits", "/dashboard/credits", "credits")
        },
        entry_for(SeeUsage, "Spending", "/dashboard/spending", "spending"),
        entry_for(
            ManageMoney,
            "Statement",
            "/dashboard/statement",
            "statement",
        ),
        entry_for(SeeUsage, "Alerts", "/dashboard/alerts", "alerts"),
    ],
};

const OWN: MenuGroup = MenuGroup {
    title: None,
    entries: &[
        MenuEntry {
            is_offered: |reader| reader.has_organisations,
            ..entry("Organisation", "/dashboard/organisation", "accounts")
        },
        entry("Account", "/dashboard/account", "account"),
        entry("Docs", "/docs", "docs"),
    ],
};

const HOLDER: &[MenuGroup] = &[USE, WATCH, MONEY, OWN];

const OPERATOR: &[MenuGroup] = &[
    MenuGroup {
        title: Some("Operate"),
        entries: &[
            entry("Overview", OPERATOR_PATH, "overview"),
            entry("Accounts", "/dashboard/operator/accounts", "accounts"),
            MenuEntry {
                is_offered: |reader| reader.shop.sells,
                ..entry("Payments", "/dashboard/operator/payments", "credits")
            },
            MenuEntry {
                is_offered: |reader| reader.shop.takes_codes,
                ..entry("Codes", "/dashboard/operator/codes", "keys")
            },
            entry("Invitations", "/dashboard/operator/invites", "invites"),
            entry("Service", "/dashboard/operator/service", "service"),
            entry("Models and prices", "/dashboard/operator/models", "models"),
            entry("Audit log", "/dashboard/operator/audit", "audit"),
        ],
    },
    MenuGroup {
        title: None,
        entries: &[entry("Docs", "/docs", "docs")],
    },
];

/// Path prefix of the operator pages, which is also the path of the first one.
const OPERATOR_PATH: &str = "/dashboard/operator";
/// Path of the first page for account holders.
const HOLDER_PATH: &str = "/dashboard";

pub fn first_path(is_operator: bool) -> &'static str {
    match is_operator {
        true => OPERATOR_PATH,
        false => HOLDER_PATH,
    }
}

const MODES: &[MenuMode] = &[
    MenuMode {
        text: "My account",
        path: HOLDER_PATH,
    },
    MenuMode {
        text: "Operator",
        path: OPERATOR_PATH,
    },
];

impl Menu {
    /// Returns the navigation of a visitor who is not signed in.
    pub fn public(path: &str) -> Self {
        Self::new(PUBLIC, path)
    }

    /// Returns the navigation of a signed-in user for the page at `path`.
    pub fn signed_in(reader: MenuReader, path: &str) -> Self {
        let is_operator = reader.is_operator;
        let operates = is_operator && is_below(path, OPERATOR_PATH);
        let groups = if operates { OPERATOR } else { HOLDER };
        let modes = if is_operator { MODES } else { &[] };
        Self {
            modes,
            home: first_path(operates),
            reader,
            ..Self::new(groups, path)
        }
    }

    fn new(groups: &'static [MenuGroup], path: &str) -> Self {
        let entries = groups.iter().flat_map(|group| group.entries);
        let current = entries
            .map(|entry| entry.path)
            .filter(|entry| is_below(path, entry))
            // A page without an entry does not belong to the first page of its mode.
            .filter(|entry| ![HOLDER_PATH, OPERATOR_PATH].contains(entry) || path == *entry)
            .max_by_key(|entry| entry.len());
        Self {
            groups,
            modes: &[],
            home: HOLDER_PATH,
            current,
            reader: MenuReader::PUBLIC,
        }
    }

    /// Whether the menu has the entry.
    pub fn shows(&self, entry: &MenuEntry) -> bool {
        let reader = self.reader;
        (entry.is_offered)(reader) && entry.needs.is_none_or(|needs| reader.role.may(needs))
    }

    /// Whether the reader may do this in the account that is shown.
    pub fn reader_may(&self, action: MemberAction) -> bool {
        self.reader.role.may(action)
    }

    pub fn is_of_operators(&self) -> bool {
        self.home == OPERATOR_PATH
    }

    pub fn is_current(&self, entry: &MenuEntry) -> bool {
        self.current == Some(entry.path)
    }

    /// Returns whether the page belongs to the mode.
    pub fn is_in(&self, mode: &MenuMode) -> bool {
        mode.path == self.home
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_of_a_page_says_its_mode_and_its_entry() {
        for (is_operator, path, current, mode) in [
            (false, "/dashboard", Some("/dashboard"), "My account"),
            (
                false,
                "/dashboard/keys/key_1/revoke",
                Some("/dashboard/keys"),
                "My account",
            ),
            (false, "/dashboard/keysmith", None, "My account"),
            (false, "/dashboard/operator/service", None, "My account"),
            (
                true,
                "/dashboard/operator",
                Some("/dashboard/operator"),
                "Operator",
            ),
            (
                true,
                "/dashboard/operator/accounts/acc_1",
                Some("/dashboard/operator/accounts"),
                "Operator",
            ),
            (true, "/dashboard/operator/search", None, "Operator"),
            (
                true,
                "/dashboard/operator/service",
                Some("/dashboard/operator/service"),
                "Operator",
            ),
            (true, "/docs/clients/curl", Some("/docs"), "My account"),
        ] {
            let reader = MenuReader {
                is_operator,
                ..MenuReader::PUBLIC
            };
            let menu = Menu::signed_in(reader, path);
            assert_eq!(menu.current, current, "{path}");
            let chosen: Vec<_> = MODES.iter().filter(|mode| menu.is_in(mode)).collect();
            assert_eq!(chosen.len(), 1);
            assert_eq!(chosen[0].text, mode, "{path}");
        }
        assert!(
            Menu::signed_in(MenuReader::PUBLIC, "/dashboard")
                .modes
                .is_empty()
        );
    }
}
