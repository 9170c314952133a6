// Resolver in place of the system's: one name has two addresses, and no process listens at the first.
const dns = require("node:dns");

const [name, ...addresses] = process.argv.at(-1).split(",");
const lookup = dns.lookup;
dns.lookup = (host, options, told) => {
  if (host !== name) return lookup(host, options, told);
  const found = addresses.map((address) => ({ address, family: 4 }));
  process.nextTick(() => (options.all ? told(null, found) : told(null, found[0].address, 4)));
};
