subscription_id = "00000000-0000-0000-0000-000000000000"
region          = "japaneast"
location        = "japaneast"
resource_group  = "nightside-japaneast"
cidr            = "10.23.0.0/20"
machine_image   = "/subscriptions/00000000-0000-0000-0000-000000000000/resourceGroups/images/providers/Microsoft.Compute/images/nightside-1"
machine_type    = "Standard_D2s_v5"
ssh_public_key  = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGtleSBvZiBub2JvZHkgYXQgYWxsIGF0IGFsbCBhdCBhbGw unused"
vault_id        = "/subscriptions/00000000-0000-0000-0000-000000000000/resourceGroups/secrets/providers/Microsoft.KeyVault/vaults/mesh"
slots = {
  a = { zone = "1", secrets = ["https://mesh.vault.azure.net/secrets/japaneasta"] }
  b = { zone = "2", secrets = ["https://mesh.vault.azure.net/secrets/japaneastb"] }
}
shared_secrets   = ["https://mesh.vault.azure.net/secrets/keys"]
log_workspace_id = "/subscriptions/00000000-0000-0000-0000-000000000000/resourceGroups/logs/providers/Microsoft.OperationalInsights/workspaces/mesh"
replicas         = { japaneasta = [{ id = "vllm-3", url = "http://10.40.0.13:8000", models = ["Qwen/Qwen3-8B"] }] }
jurisdiction     = "JP"
package          = { file = "tests/package.tar.gz", sha256 = "c0703a5bd33b55186b6e90aeaef21861d1386701e617c72dea750610846e2cde" }
policy_file      = "tests/policy.yaml"
engines          = { cidrs = ["10.40.0.0/16"], ports = [8000] }
latitude         = 35.68
longitude        = 139.77
peers            = { us-east-1a = { region = "us-east-1", jurisdiction = "US", address = "203.0.113.7:7070" } }
controllers      = ["198.51.100.10:7090", "198.51.100.11:7090"]
settings         = { limits = { keep_alive_comments = "30s" } }
