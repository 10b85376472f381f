//! Tests name, logo and accent colour on pages.

use super::*;

/// The address in the attribute `href` or `src` of the first tag that begins with `tag`.
fn address<'a>(page: &'a str, tag: &str) -> Option<&'a str> {
    let (_, rest) = page.split_once(tag)?;
    let (_, rest) = rest.split_once("/dashboard/brand/")?;
    rest.split('"').next()
}

#[tokio::test]
async fn pages_have_the_name_the_mark_and_the_accent_of_the_brand() {
    let brand = "\nbrand: {name: \"<b>Acme</b> AI\", accent: \"#b00020\"}\nlisten:\n";
    let world = world(&[("\nlisten:\n", brand)]).await;
    let cookie = world.sign_up("a@example.com").await;
    for (path, title) in [
        ("/dashboard/sign-in", "Sign in"),
        ("/dashboard", "Overview"),
    ] {
        let page = world.get(path, &cookie).await.body;
        assert!(!page.contains("<b>Acme"), "{path}");
        let name = "&#60;b&#62;Acme&#60;/b&#62; AI";
        assert!(
            page.contains(&format!("<title>{title} · {name}</title>")),
            "{path}"
        );
        assert!(page.contains(&format!("<span>{name}</span>")), "{path}");
        for (tag, kind, says) in [
            ("<link rel=\"icon\"", "image/svg+xml", "#b00020"),
            (
                "<link rel=\"stylesheet\"",
                "text/css; charset=utf-8",
                "--accent:light-dark(#b00020,",
            ),
        ] {
            let file = address(&page, tag).unwrap();
            let file = world.get(&format!("/dashboard/brand/{file}"), "").await;
            assert_eq!(file.status, 200);
            assert_eq!(file.headers["content-type"], kind);
            assert!(file.headers["cache-control"].contains("immutable"));
            assert!(file.body.contains(says), "{}", file.body);
        }
    }
    world.get("/dashboard/nothing", &cookie).await.shows("Acme");
}

#[tokio::test]
async fn without_a_brand_pages_have_the_built_in_one() {
    let world = world(&[]).await;
    let page = world.get("/dashboard/sign-in", "").await.body;
    assert!(page.contains("<title>Sign in · Model gateway</title>"));
    assert!(!page.contains("/dashboard/brand/"));
    let (_, icon) = page.split_once("<link rel=\"icon\" href=\"").unwrap();
    let icon = world.get(icon.split('"').next().unwrap(), "").await;
    assert_eq!(
        (icon.status, icon.headers["content-type"].as_str()),
        (200, "image/svg+xml")
    );
}
