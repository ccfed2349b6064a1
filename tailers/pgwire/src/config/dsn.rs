//! Connection strings: `key=value …` and `postgres://…`. Pure; what the values mean is not decided here.

use crate::{Error, Result};

/// Settings in the order in which they were written; later ones win.
pub(super) type Settings = Vec<(String, String)>;

pub(super) fn parse(text: &str) -> Result<Settings> {
    for scheme in ["postgresql://", "postgres://"] {
        if let Some(rest) = text.strip_prefix(scheme) {
            return uri(rest);
        }
    }
    key_values(text)
}

fn bad(what: &str) -> Error {
    // The text is not repeated: it may hold a password.
    Error::Config(format!("the connection string cannot be read: {what}"))
}

/// libpq's form: blanks around `=` are allowed, values with blanks stand in single quotes, a backslash keeps
/// the next character as it is.
fn key_values(text: &str) -> Result<Settings> {
    let mut settings = Settings::new();
    let mut chars = text.chars().peekable();
    loop {
        while chars.next_if(|c| c.is_whitespace()).is_some() {}
        if chars.peek().is_none() {
            return Ok(settings);
        }
        let mut key = String::new();
        while let Some(c) = chars.next_if(|c| *c != '=' && !c.is_whitespace()) {
            key.push(c);
        }
        while chars.next_if(|c| c.is_whitespace()).is_some() {}
        if chars.next() != Some('=') {
            // A word without «=» may be the rest of an unquoted password: do not print it.
            return Err(bad(
                "a setting has no «=»; write key=value pairs, with values that hold blanks in single quotes",
            ));
        }
        while chars.next_if(|c| c.is_whitespace()).is_some() {}
        let mut value = String::new();
        if chars.next_if_eq(&'\'').is_some() {
            loop {
                match chars.next() {
                    Some('\'') => break,
                    Some('\\') => value.extend(chars.next()),
                    Some(c) => value.push(c),
                    None => return Err(bad(&format!("the quoted value of «{key}» does not end"))),
                }
            }
        } else {
            while let Some(c) = chars.next_if(|c| !c.is_whitespace()) {
                if c == '\\' {
                    value.extend(chars.next());
                } else {
                    value.push(c);
                }
            }
        }
        settings.push((key, value));
    }
}

/// `user:password@host:port,host:port/database?key=value&…`, parts percent-encoded.
fn uri(rest: &str) -> Result<Settings> {
    let mut settings = Settings::new();
    let (main, query) = rest.split_once('?').map_or((rest, None), |(main, query)| (main, Some(query)));
    let (authority, database) =
        main.split_once('/').map_or((main, None), |(authority, database)| (authority, Some(database)));
    let (sign_in, hosts) =
        authority.rsplit_once('@').map_or((None, authority), |(sign_in, hosts)| (Some(sign_in), hosts));
    if let Some(sign_in) = sign_in {
        let (user, password) =
            sign_in.split_once(':').map_or((sign_in, None), |(user, password)| (user, Some(password)));
        if !user.is_empty() {
            settings.push(("user".into(), decoded(user)?));
        }
        if let Some(password) = password {
            settings.push(("password".into(), decoded(password)?));
        }
    }
    if !hosts.is_empty() {
        let (mut names, mut ports) = (Vec::new(), Vec::new());
        for host in hosts.split(',') {
            let (name, port) = host_and_port(host)?;
            names.push(decoded(name)?);
            ports.push(decoded(port)?);
        }
        if names.iter().any(|name| !name.is_empty()) {
            settings.push(("host".into(), names.join(",")));
        }
        if ports.iter().any(|port| !port.is_empty()) {
            settings.push(("port".into(), ports.join(",")));
        }
    }
    if let Some(database) = database.filter(|d| !d.is_empty()) {
        settings.push(("dbname".into(), decoded(database)?));
    }
    for pair in query.unwrap_or("").split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').ok_or_else(|| bad("a setting after «?» has no «=»"))?;
        settings.push((decoded(key)?, decoded(value)?));
    }
    Ok(settings)
}

fn host_and_port(text: &str) -> Result<(&str, &str)> {
    if let Some(rest) = text.strip_prefix('[') {
        let (host, after) = rest.split_once(']').ok_or_else(|| bad("an IPv6 address lacks its «]»"))?;
        return match after.strip_prefix(':') {
            Some(port) => Ok((host, port)),
            None if after.is_empty() => Ok((host, "")),
            None => Err(bad("only a port may follow an IPv6 address")),
        };
    }
    Ok(text.split_once(':').unwrap_or((text, "")))
}

fn decoded(text: &str) -> Result<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let mut digit =
            || bytes.next().and_then(|b| char::from(b).to_digit(16)).and_then(|d| u8::try_from(d).ok());
        match (digit(), digit()) {
            (Some(high), Some(low)) if (high, low) != (0, 0) => out.push(high * 16 + low),
            _ => {
                return Err(bad("«%» must be followed by two hexadecimal digits (write %25 for «%» itself)"));
            }
        }
    }
    String::from_utf8(out).map_err(|_| bad("it is not UTF-8 after decoding"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(text: &str) -> Vec<(String, String)> {
        parse(text).unwrap()
    }
    fn pair(key: &str, value: &str) -> (String, String) {
        (key.into(), value.into())
    }

    #[test]
    fn key_values_follow_libpqs_quoting() {
        assert_eq!(
            pairs(r"host = /tmp  port=5433 password='a b\'c\\' user=x\ y options=''"),
            [
                pair("host", "/tmp"),
                pair("port", "5433"),
                pair("password", r"a b'c\"),
                pair("user", "x y"),
                pair("options", "")
            ]
        );
        assert_eq!(pairs("  "), []);
    }

    #[test]
    fn errors_never_repeat_values() {
        for bad in ["password=hunter 2", "password='hunter", "postgres://u:hunter%2@h/"] {
            let text = parse(bad).unwrap_err().to_string();
            assert!(!text.contains("hunter"), "{text}");
        }
    }

    #[test]
    fn uris_name_several_hosts() {
        assert_eq!(
            pairs("postgresql://me:p%40ss@a:1,[::1]:2,c/db?sslmode=require&application_name=x%20y"),
            [
                pair("user", "me"),
                pair("password", "p@ss"),
                pair("host", "a,::1,c"),
                pair("port", "1,2,"),
                pair("dbname", "db"),
                pair("sslmode", "require"),
                pair("application_name", "x y")
            ]
        );
        assert_eq!(pairs("postgres://%2Ftmp:5433"), [pair("host", "/tmp"), pair("port", "5433")]);
        assert_eq!(pairs("postgres:///db?host=/run/pg"), [pair("dbname", "db"), pair("host", "/run/pg")]);
        assert!(parse("postgres://[::1/").is_err());
    }
}
