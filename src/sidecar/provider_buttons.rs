//! The buttons that lead to identity providers, on the pages to sign in and to sign up.

use config::SignInSettings;

/// A button that leads to a provider.
pub struct ProviderButton {
    pub id: String,
    pub name: String,
}

pub fn provider_buttons(settings: &SignInSettings) -> Vec<ProviderButton> {
    let providers = settings.providers.iter();
    let button = providers.map(|provider| ProviderButton {
        id: provider.id.clone(),
        name: provider.name.clone(),
    });
    button.collect()
}
