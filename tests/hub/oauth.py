"""Signs users in as an OpenID provider: one page with a button, an authorization code, an access token for the granted scopes.

A code works once. An access token may read its user's repositories: gated ones with the scope ``gated-repos``, private ones with
``read-repos``. With ``write-discussions`` it may open pull requests.
"""

import base64
import html
import time
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from urllib.parse import parse_qs, unquote, urlencode

from joserfc import jwt
from joserfc.jwk import RSAKey

from .repositories import Kind, Repository, User
from .wire import Answer, Request, answer_json, plain

ISSUED_SECONDS = 8 * 3600


@dataclass
class Application:
    """An app with sign-in, and its only user. token: the access token that the user grants."""

    client_id: str
    secret: str
    user: User
    token: str


@dataclass
class Provider:
    """The provider's state. granted: code -> (application, the parameters of the request)."""

    applications: dict[str, Application] = field(default_factory=dict)
    granted: dict[str, tuple[Application, dict[str, str]]] = field(default_factory=dict)
    serial: "count[int]" = field(default_factory=count)

    @cached_property
    def key(self) -> RSAKey:
        """The key of signatures, made when the first one is asked for: it takes as long as many a test."""
        return RSAKey.generate_key(2048, {"kid": "hub", "use": "sig"})

    def answer(self, request: Request, url: str, users: dict[str, User], repositories: dict[tuple[Kind, str], Repository]) -> Answer | None:
        """Answer a request about signing in; None for any other."""
        if request.path == "/.well-known/openid-configuration":
            return answer_json(
                {
                    "issuer": url,
                    "authorization_endpoint": f"{url}/oauth/authorize",
                    "token_endpoint": f"{url}/oauth/token",
                    "userinfo_endpoint": f"{url}/oauth/userinfo",
                    "jwks_uri": f"{url}/.well-known/jwks.json",
                    "response_types_supported": ["code"],
                    "id_token_signing_alg_values_supported": ["RS256"],
                }
            )
        if request.path == "/.well-known/jwks.json":
            return answer_json({"keys": [self.key.as_dict(private=False)]})
        if request.path == "/oauth/authorize":
            return self._authorize({name: values[0] for name, values in request.query.items()})
        if request.path == "/oauth/token" and request.method == "POST":
            return self._token(request, url, users, repositories)
        if request.path == "/oauth/userinfo":
            user = users.get(request.token or "")
            return answer_json(_profile(user)) if user is not None else answer_json({"error": "invalid_token"}, 401)
        return None

    def _authorize(self, asked: dict[str, str]) -> Answer:
        application = self.applications.get(asked.get("client_id", ""))
        if application is None or asked.get("response_type") != "code" or not asked.get("redirect_uri"):
            return answer_json({"error": "invalid_request"}, 400)
        code = f"code-{next(self.serial)}"
        self.granted[code] = (application, asked)
        mark = "&" if "?" in asked["redirect_uri"] else "?"
        back = f"{asked['redirect_uri']}{mark}{urlencode({'code': code, 'state': asked.get('state', '')})}"
        page = f'<h1>Authorize</h1><a id="authorize" href="{html.escape(back)}">Authorize {html.escape(asked.get("scope", ""))}</a>'
        return plain(200, page.encode(), {"Content-Type": "text/html; charset=utf-8"})

    def _token(self, request: Request, url: str, users: dict[str, User], repositories: dict[tuple[Kind, str], Repository]) -> Answer:
        form = {name: values[0] for name, values in parse_qs(request.body.decode()).items()}
        application, asked = self.granted.pop(form.get("code", ""), (None, {}))
        if application is None or form.get("redirect_uri") != asked["redirect_uri"]:
            return answer_json({"error": "invalid_grant"}, 400)
        sent = base64.b64decode((request.headers.get("authorization") or "").removeprefix("Basic ")).decode()
        if [unquote(part) for part in sent.split(":")] != [application.client_id, application.secret]:
            return answer_json({"error": "invalid_client"}, 401)
        scopes = asked.get("scope", "").split()
        needed = {repository.id: "read-repos" if repository.private else "gated-repos" for repository in repositories.values()}
        readable = frozenset(name for name in application.user.repositories if needed.get(name) in scopes)
        users[application.token] = replace(application.user, repositories=readable, discusses="write-discussions" in scopes)
        now = int(time.time())
        claims = {
            **_profile(application.user),
            **{"iss": url, "aud": application.client_id, "iat": now, "exp": now + ISSUED_SECONDS, "nonce": asked.get("nonce", "")},
        }
        return answer_json(
            {
                "access_token": application.token,
                "token_type": "bearer",
                "expires_in": ISSUED_SECONDS,
                "scope": " ".join(scopes),
                "id_token": jwt.encode({"alg": "RS256", "kid": "hub"}, claims, self.key),
            }
        )


def _profile(user: User) -> dict[str, object]:
    return {
        "sub": f"id-of-{user.name}",
        "name": user.name,
        "preferred_username": user.name,
        "profile": f"https://huggingface.co/{user.name}",
        "picture": f"https://huggingface.co/avatars/{user.name}.svg",
        "orgs": [],
    }
