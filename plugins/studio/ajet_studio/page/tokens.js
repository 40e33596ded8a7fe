export async function tokenTab() {}
