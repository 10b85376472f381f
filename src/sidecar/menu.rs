//! The main menu, in its order: one line per entry.
//!
//! Must not know a page or a request.

/// An entry of the menu.
pub struct MenuEntry {
    pub text: &'static str,
    pub path: &'static str,
    /// Title of the pages that belong to the entry.
    page_title: &'static str,
    audience: MenuAudience,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum MenuAudience {
    Everyone,
    SignedOut,
    AccountHolders,
    Operators,
}

impl MenuAudience {
    const fn entry(self, text: &'static str, path: &'static str) -> MenuEntry {
        MenuEntry {
            text,
            path,
            page_title: text,
            audience: self,
        }
    }
}

const MENU: &[MenuEntry] = &[
    MenuAudience::AccountHolders.entry("Overview", "/dashboard"),
    MenuAudience::AccountHolders.entry("Keys", "/dashboard/keys"),
    MenuAudience::AccountHolders.entry("Set up", "/dashboard/setup"),
    MenuAudience::AccountHolders.entry("Playground", "/dashboard/playground"),
    MenuAudience::AccountHolders.entry("Activity", "/dashboard/activity"),
    MenuAudience::AccountHolders.entry("Conversations", "/dashboard/conversations"),
    MenuAudience::AccountHolders.entry("Spending", "/dashboard/spending"),
    MenuAudience::AccountHolders.entry("Statement", "/dashboard/statement"),
    MenuAudience::AccountHolders.entry("Alerts", "/dashboard/alerts"),
    MenuEntry {
        page_title: "Documentation",
        ..MenuAudience::Everyone.entry("Docs", "/docs")
    },
    MenuAudience::SignedOut.entry("Dashboard", "/dashboard"),
    MenuAudience::AccountHolders.entry("Account", "/dashboard/account"),
    MenuAudience::Operators.entry("Operator", "/dashboard/operator"),
];

impl MenuEntry {
    pub fn is_for_page(&self, title: &str) -> bool {
        self.page_title == title
    }
}

/// The menu for someone who is not signed in.
pub fn public_menu() -> Vec<&'static MenuEntry> {
    entries_for(&[MenuAudience::Everyone, MenuAudience::SignedOut])
}

/// The menu of an account holder.
pub fn holder_menu(is_operator: bool) -> Vec<&'static MenuEntry> {
    let mut audiences = vec![MenuAudience::Everyone, MenuAudience::AccountHolders];
    if is_operator {
        audiences.push(MenuAudience::Operators);
    }
    entries_for(&audiences)
}

fn entries_for(audiences: &[MenuAudience]) -> Vec<&'static MenuEntry> {
    MENU.iter()
        .filter(|entry| audiences.contains(&entry.audience))
        .collect()
}
