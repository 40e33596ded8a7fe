export async function searchView(page) { page.named('search'); throw new Error('not yet'); }
