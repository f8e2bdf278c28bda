// run_checks.mjs - runs named checks in their order: prints one line per check, and exits with status 1 if one fails.
export async function runChecks(checks) {
  let failed = 0;
  for (const [name, check] of Object.entries(checks)) {
    try {
      await check();
      console.log('ok', name);
    } catch (error) {
      failed++;
      console.log('FAILED', name, error);
    }
  }
  process.exit(failed ? 1 : 0);
}
