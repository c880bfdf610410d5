"""Settings of RocketMQ that ask a server for access control or TLS: one table for broker, name server and controller.

Here both are options of the command line (`SecurityOptions`). A server whose file asks for what no option gives does
not start, unless its operator accepts less (`--accept-weaker`).
"""

from __future__ import annotations

from collections.abc import Mapping

from tiermq.settings import Promise, is_false, is_given, is_true

ACL, ENFORCING, CERTIFICATE, TRUSTED = "--acl", "--tls enforcing", "--tls-cert", "--tls-trusted"
"""An operator's option that keeps a promise."""

_ACCOUNTS = "requests would not be checked: there are no accounts"
_GIVE_ACCOUNTS = "give --acl with plain_acl.yml, or accounts in TOML"

SECURITY_PROMISES: Mapping[str, Promise] = {
    # Access control.
    "aclEnable": Promise(is_true, _ACCOUNTS, _GIVE_ACCOUNTS, ACL),
    "authenticationEnabled": Promise(is_true, _ACCOUNTS, _GIVE_ACCOUNTS, ACL),
    "authorizationEnabled": Promise(is_true, _ACCOUNTS, _GIVE_ACCOUNTS, ACL),
    "migrateAuthFromV1Enabled": Promise(is_true, _ACCOUNTS, _GIVE_ACCOUNTS, ACL),
    # TLS, which RocketMQ takes from the command line or a file of its own.
    "useTLS": Promise(is_true, "other servers would be reached without TLS", "give --tls enforcing", ENFORCING),
    "tls.server.mode": Promise(
        lambda value: value.strip().lower() == "enforcing",
        "plain peers would be served",
        "give --tls enforcing",
        ENFORCING,
        ("disabled", "permissive", "enforcing"),
    ),
    "tls.server.need.client.auth": Promise(
        lambda value: value.strip().lower() == "require",
        "no client needs a certificate",
        "give --tls-trusted",
        TRUSTED,
        ("none", "optional", "require"),
    ),
    "tls.server.authClient": Promise(is_true, "no client needs a certificate", "give --tls-trusted", TRUSTED),
    "tls.server.trustCertPath": Promise(is_given, "no client needs a certificate", "give --tls-trusted", TRUSTED),
    "tls.server.certPath": Promise(is_given, "this certificate would not be used", "give --tls-cert", CERTIFICATE),
    "tls.server.keyPath": Promise(is_given, "this key would not be used", "give --tls-key", CERTIFICATE),
    "tls.test.mode.enable": Promise(is_false, "a certificate would be made up", "give --tls-cert", CERTIFICATE),
}
