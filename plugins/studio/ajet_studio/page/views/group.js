export async function groupView(page) { page.named('group'); throw new Error('not yet'); }
