// A real OpenID provider (panva's `oidc-provider`, certified) on loopback, for tests: `node provider.mjs PORT KEYS CLAIMS`.
// KEYS holds the private keys that it signs with, CLAIMS what each client's tokens say besides. Clients show a secret, and
// get access tokens (RFC 9068) for whatever audience they ask for.
import { readFileSync } from 'node:fs';
import Provider from 'oidc-provider';

const [port, keys, claims] = process.argv.slice(2);
const issuer = `http://127.0.0.1:${port}`;
const { __algorithm: algorithm, ...told } = JSON.parse(readFileSync(claims, 'utf8'));

const provider = new Provider(issuer, {
  jwks: JSON.parse(readFileSync(keys, 'utf8')),
  clients: Object.keys(told).map((name) => ({
    client_id: name,
    client_secret: `secret of ${name}`,
    grant_types: ['client_credentials'],
    redirect_uris: [],
    response_types: [],
    token_endpoint_auth_method: 'client_secret_post',
    id_token_signed_response_alg: algorithm,
  })),
  scopes: ['inference', 'admin'],
  ttl: { ClientCredentials: 600 },
  features: {
    devInteractions: { enabled: false },
    clientCredentials: { enabled: true },
    resourceIndicators: {
      enabled: true,
      getResourceServerInfo: (_, audience) => ({
        audience,
        scope: 'inference admin',
        accessTokenFormat: 'jwt',
        jwt: { sign: { alg: algorithm } },
      }),
    },
  },
  extraTokenClaims: (_, token) => told[token.clientId],
});

provider.on('server_error', (_, error) => console.error(error));
provider.listen(Number(port), '127.0.0.1', () => console.log('ready'));
