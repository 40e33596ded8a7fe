export async function treeTab() {}
